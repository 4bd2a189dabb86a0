/// RMSNorm, fused with the addition to the residual stream.
///
///   h' = h + delta;   y = h' / sqrt(mean(h'^2) + eps) * gain
/// Everything in f32 from load to store (f64 for f64), one rounding to the dtype of y. The residual
/// stream h stays f32 when activations are bf16.
#pragma once

#include <ATen/core/Tensor.h>

#include "kda/types.h"
#include "model/observe.h"

namespace kda::model {

struct NormedSum {
  at::Tensor sum;     ///< h' [tokens,d] f32 (f64)
  at::Tensor normed;  ///< y [tokens,d] in the activation dtype
};

template <>
struct ObservedParts<NormedSum> {
  template <typename Visit>
  static void tensors(NormedSum& value, Visit&& visit) {
    visit("sum", value.sum);
    visit("normed", value.normed);
  }
};

/// residual [tokens,d] f32 (f64); delta [tokens,d] in the activation dtype, or undefined (then
/// `sum` is the residual itself); gain [d] f32 (f64). Differentiable.
NormedSum add_rms_norm(const at::Tensor& residual, const at::Tensor& delta, const at::Tensor& gain,
                       double eps, DType activation);

/// The same from torch's operators: f64 on a CUDA device, and a second opinion in the tests.
NormedSum add_rms_norm_composed(const at::Tensor& residual, const at::Tensor& delta,
                                const at::Tensor& gain, double eps, DType activation);

}  // namespace kda::model
