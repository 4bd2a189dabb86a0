/// The Kimi Delta Attention layer.
///
/// With x the normed input, in this order:
///   1. q, k, v = x W_q^T, x W_k^T, x W_v^T
///   2. causal depthwise convolution and SiLU on each (short_conv.h)
///   3. heads; q and k divided by their L2 norm                           (in the operator)
///   4. decay pre-activation z = (x W_fa^T) W_fb^T, gate(z, A_log, dt_bias) (in the operator)
///   5. step size beta = sigmoid(x W_b^T)                                  (in the operator)
///   6. delta rule with scale 1/sqrt(K) (kda/ops/chunk.h)
///   7. RMSNorm over V, times sigmoid(x W_g^T), or through a low rank (gated_norm.h)
///   8. y = o W_o^T
/// Sources: Kimi Linear report (arXiv 2510.26692) section 4; Kimi K3 report (arXiv 2607.24653)
/// section 2.1.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "binding/functional.h"
#include "model/config.h"
#include "model/decode_state.h"
#include "model/new_parameter.h"
#include "model/parameter.h"
#include "model/sequences.h"

namespace kda::model {

class KdaAttention {
 public:
  /// Allocates the parameters, uninitialised.
  KdaAttention(const KDAConfig& config, const LayerOptions& layer);

  /// x [tokens,d] in the activation dtype; returns the same shape and dtype. Differentiable.
  at::Tensor forward(const at::Tensor& x, const Sequences& sequences) const;

  /// Continues from the cached state and leaves it after the last token of each sequence. No
  /// gradient.
  at::Tensor forward_cached(const at::Tensor& x, const Sequences& sequences,
                            const LayerCache& cache) const;

  /// Appends the parameters under `prefix` ("model.layers.0.self_attn.").
  void collect(const std::string& prefix, std::vector<Parameter>& parameters) const;

  /// An empty cache for `num_rows` sequences.
  LayerState new_state(std::int64_t num_rows) const;

 private:
  struct Inputs;
  Inputs project(const at::Tensor& x) const;
  binding::KdaArguments operator_arguments() const;
  at::Tensor finish(const at::Tensor& o, const at::Tensor& gate) const;

  KDAConfig config_;
  std::string backend_;
  // Neighbours in one memory block, so that one matrix product serves them all.
  at::Tensor q_proj_, k_proj_, v_proj_;  // [H*K,d], [H*K,d], [HV*V,d]
  at::Tensor g_proj_;                    // [HV*V,d] full rank, or g_a [r,d]
  at::Tensor f_a_proj_, b_proj_;         // [r,d], [HV,d]

  at::Tensor g_b_proj_;                  // [HV*V,r], low rank only
  at::Tensor f_b_proj_;                  // [HV*K,r]
  at::Tensor q_conv_, k_conv_, v_conv_;  // [C,1,W]
  at::Tensor a_log_, dt_bias_;           // [HV], [HV*K]
  at::Tensor o_norm_;                    // [V]
  at::Tensor o_proj_;                    // [d,HV*V]
};

}  // namespace kda::model
