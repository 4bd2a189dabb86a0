/// One decoder layer: attention, then feed-forward, each behind its norm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kda/types.h"
#include "model/kda_attention.h"
#include "model/swiglu.h"

namespace kda::model {

/// The residual stream between layers: its value is base + delta. The sum is formed together with
/// the next norm.
struct Residual {
  at::Tensor base;   ///< [tokens,d] f32 (f64)
  at::Tensor delta;  ///< [tokens,d] in the activation dtype; undefined = 0

  at::Tensor sum() const;
};

/// Observers get each sub-layer's output: ("attn", value), ("mlp", value).
using BlockObserver = std::function<void(const char* part, const at::Tensor& value)>;

class Block {
 public:
  Block(const KDAConfig& config, const LayerOptions& layer);

  /// With a state in `cache` the layer continues from it (no gradient).
  Residual forward(const Residual& input, const Sequences& sequences, const LayerCache& cache,
                   const BlockObserver* observer) const;

  /// The same result and gradients; only `input` is kept for backward, and forward runs again then.
  Residual forward_recomputed(const Residual& input, const Sequences& sequences) const;

  void collect(const std::string& prefix, std::vector<Parameter>& parameters) const;
  const KdaAttention& attention() const { return attention_; }

 private:
  double norm_eps_;
  DType activation_;
  at::Tensor input_norm_, post_attention_norm_;  // [d]
  KdaAttention attention_;
  SwigluMlp mlp_;
};

}  // namespace kda::model
