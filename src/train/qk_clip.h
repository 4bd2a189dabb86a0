/// QK-Clip: keeps the attention logits of MLA heads bounded by scaling weights, not logits.
///
/// With S_h the largest logit that head h had in the step, after the update, for every head with
/// S_h > tau: gamma = tau / S_h, and
///   rows of the query weight of the head's own part (n)      *= sqrt(gamma)
///   rows of kv_b_proj that make the head's key (n)           *= sqrt(gamma)
///   rows of the query weight that meet the shared key (r)    *= gamma
/// The shared key itself is left alone, since other heads read it. KDA layers need none of it:
/// their queries and keys have norm one. Source: Kimi K2 report (arXiv 2507.20534) section 2.1.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/causal_lm.h"
#include "model/config.h"

namespace kda::train {

class QkClip {
 public:
  /// `parameters` are those of a model with this config; they are changed in place.
  QkClip(const model::KDAConfig& config, const std::vector<model::Parameter>& parameters,
         double tau);

  /// Takes a micro-batch's largest logits into the step's. Nothing waits for the device.
  void observe(const std::vector<model::LargestLogits>& largest);

  /// Scales the weights by what was seen since the last call, and forgets it.
  void apply();

  /// Forgets the step, which was skipped.
  void discard();

 private:
  struct Layer {
    std::int64_t index = 0;
    at::Tensor query;    ///< [H*(n+r), in]
    at::Tensor kv_b;     ///< [H*(n+v), rho]
    at::Tensor largest;  ///< [H]; undefined: nothing seen
  };

  model::MlaConfig mla_;
  double tau_;
  std::vector<Layer> layers_;
};

}  // namespace kda::train
