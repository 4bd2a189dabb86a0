/// Multi-head latent attention without positions, with an output gate.
///
/// With x the normed input, n | r the two parts of a head's query and key:
///   q = x W_q^T, or rms_norm(x W_qa^T) W_qb^T                    [tokens,H,n+r]
///   [c | k_shared] = x W_kv^T,  c <- rms_norm(c)                 [tokens,rho | r]
///   [k | v]_h = c W_kvb_h^T;  key = [k_h | k_shared], nothing is rotated
///   o_h = softmax(causal(q_h key_h^T / sqrt(n+r))) v_h
///   y = (o * sigmoid(x W_g^T)) W_o^T, the gate per channel and after the values
/// Expanded form as written: training, the first piece of a prompt. Absorbed form: with
/// W_kvb_h = [W_UK | W_UV], the query becomes W_UK_h^T q_h and meets c itself, W_UV_h follows the
/// weighted sum; keys and values are never formed and the cache holds c and k_shared only: rho + r
/// numbers a token. Both are equal but for rounding. Sources: Kimi K3 report (arXiv 2607.24653)
/// section 2.1; Kimi Linear report (arXiv 2510.26692) section 4.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "model/decode_state.h"
#include "model/layer_config.h"
#include "model/new_parameter.h"
#include "model/parameter.h"
#include "model/sequences.h"

namespace kda::model {

class GatedMla {
 public:
  /// Allocates the parameters, uninitialised.
  GatedMla(const MlaConfig& config, std::int64_t hidden_size, const LayerOptions& layer);

  /// x [tokens,d] in the activation dtype; returns the same shape and dtype. Differentiable.
  at::Tensor forward(const at::Tensor& x, const Sequences& sequences) const;

  /// The absorbed form of the same: for tests and inspection, it costs more in training.
  at::Tensor forward_absorbed(const at::Tensor& x, const Sequences& sequences) const;

  /// Continues after the cached tokens and adds the new ones to the cache. No gradient.
  at::Tensor forward_cached(const at::Tensor& x, const Sequences& sequences,
                            const LayerCache& cache) const;

  /// The largest attention logit of each head for this input, [H] f32 (f64): what QK-Clip limits.
  at::Tensor largest_logits(const at::Tensor& x, const Sequences& sequences) const;

  /// Appends the parameters under `prefix` ("model.layers.3.self_attn.").
  void collect(const std::string& prefix, std::vector<Parameter>& parameters) const;

  /// An empty cache for `num_rows` sequences.
  LayerState new_state(std::int64_t num_rows) const;

  const MlaConfig& config() const { return config_; }

 private:
  struct Inputs;
  Inputs project(const at::Tensor& x) const;
  at::Tensor expanded_key(const Inputs& in, const at::Tensor& kv) const;
  at::Tensor attend_expanded(const Inputs& in, const Sequences& sequences) const;
  at::Tensor absorbed_query(const at::Tensor& q) const;
  at::Tensor values_of(const at::Tensor& latent) const;
  at::Tensor step(const Inputs& in, const LayerCache& cache) const;
  at::Tensor continued(const Inputs& in, const Sequences& sequences, const LayerCache& cache) const;
  at::Tensor finish(const at::Tensor& o, const at::Tensor& gate) const;
  double scale() const;

  MlaConfig config_;
  DType activation_;
  // Neighbours in one memory block, so that one matrix product serves them all.
  at::Tensor q_proj_;     // [H*(n+r),d], or q_a [q_lora,d]
  at::Tensor kv_a_proj_;  // [rho+r,d]
  at::Tensor g_proj_;     // [H*v,d], with the output gate only

  at::Tensor q_a_norm_, q_b_proj_;  // [q_lora], [H*(n+r),q_lora], low-rank query only
  at::Tensor kv_a_norm_;            // [rho]
  at::Tensor kv_b_proj_;            // [H*(n+v),rho], rows of a head: n key rows, v value rows
  at::Tensor o_proj_;               // [d,H*v]
};

}  // namespace kda::model
