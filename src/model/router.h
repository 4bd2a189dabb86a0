/// Routing of tokens to experts: sigmoid scores, top-k with a bias that only selects.
///
///   s = sigmoid(x W^T), everything in f32 (f64) whatever the dtype of x
///   T = the k experts with the largest s + b, inside the best groups when there are groups
///   p_j = c s_j / (sum_T s + 1e-20)     (without renormalisation: c s_j)
/// A group's rank is the sum of its two largest s + b. Gradients pass through the weights p only:
/// with p' = p / c, ds_j = c/Z (dp_j - sum_i dp_i p'_i), dlogit_j = ds_j s_j (1 - s_j), zero for
/// experts that were not chosen; the bias never gets one. Sources: Kimi K3 report (arXiv
/// 2607.24653) section 2.3; Kimi-Linear's released code for groups.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/layer_config.h"
#include "model/observe.h"

namespace kda::model {

/// Where the tokens go. Experts of a token come in falling order of s + b.
struct Routing {
  at::Tensor weights;    ///< p [tokens,k] f32 (f64), differentiable
  at::Tensor experts;    ///< [tokens,k] i64
  at::Tensor scores;     ///< s [tokens,E] f32 (f64), not differentiable; what balancing reads
  at::Tensor threshold;  ///< [tokens] largest s + b that was not chosen; undefined when k = E
};

template <>
struct ObservedParts<Routing> {
  template <typename Visit>
  static void tensors(Routing& value, Visit&& visit) {
    visit("weights", value.weights);
    visit("experts", value.experts);
    visit("scores", value.scores);
    if (value.threshold.defined()) visit("threshold", value.threshold);
  }
};

/// x [tokens,d] in the activation dtype, full width; weight [E,d] f32 (f64); bias [E] f32 (f64).
/// The routing depends on the values of its arguments only: the same call gives the same experts.
Routing route(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
              const MoeConfig& config);

}  // namespace kda::model
