/// Mixture of experts, plain or with a latent width for the routed ones (Stable LatentMoE).
///
///   y = shared(x) + W_up rms_norm( sum_{j in T} p_j E_j(W_down x) )
/// The router (router.h) and the shared experts read the full-width x; the routed experts
/// (experts.h) read the latent. The norm comes after the weighted sum. Without a latent width the
/// two projections are left out, without `latent_norm` the norm: Kimi-Linear's form. The shared
/// experts are one MLP of width num_shared * I, which equals their sum. Sources: Kimi K3 report
/// (arXiv 2607.24653) section 2.3; Kimi Linear report (arXiv 2510.26692).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/gated_mlp.h"
#include "model/layer_config.h"
#include "model/new_parameter.h"
#include "model/parameter.h"
#include "model/quantile_balance.h"

namespace kda::model {

class LatentMoe {
 public:
  /// Allocates the parameters, uninitialised; the selection bias is zero.
  LatentMoe(const MoeConfig& config, std::int64_t hidden_size, const Activation& activation,
            double norm_eps, const LayerOptions& layer);

  /// x [tokens,d] in the activation dtype, normed; returns the same shape and dtype.
  /// Differentiable. `statistics` counts the routing of this call; null: not counted (evaluation,
  /// decoding, and the second forward of a recomputed layer, which routes identically because
  /// neither x nor the bias has changed). `counted` as in RoutingStatistics::add.
  at::Tensor forward(const at::Tensor& x, RoutingStatistics* statistics = nullptr,
                     const at::Tensor& counted = {}) const;

  /// Appends the trained parameters under `prefix` ("model.layers.1.block_sparse_moe."). The routed
  /// experts are two stacked tensors: "experts.gate_up_proj" [E,2I,l] and "experts.down_proj"
  /// [E,l,I].
  void collect(const std::string& prefix, std::vector<Parameter>& parameters) const;
  /// Appends what is saved but not trained: "gate.e_score_correction_bias" [E].
  void collect_buffers(const std::string& prefix, std::vector<Parameter>& buffers) const;

  /// [E] f32 (f64); RoutingStatistics::update works on it in place.
  const at::Tensor& selection_bias() const { return selection_bias_; }
  const MoeConfig& config() const { return config_; }

 private:
  MoeConfig config_;
  Activation activation_;
  double norm_eps_;
  DType compute_;
  at::Tensor router_;                   // [E,d]
  at::Tensor selection_bias_;           // [E]
  at::Tensor gate_up_, down_;           // [E,2I,l], [E,l,I]
  at::Tensor latent_down_, latent_up_;  // [l,d], [d,l], with a latent width only
  at::Tensor latent_norm_;              // [l], with the norm only
  std::optional<GatedMlp> shared_;
};

}  // namespace kda::model
