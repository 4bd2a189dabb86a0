/// L2 normalisation over the last dimension, as KDA applies it to queries and keys.
///
///   y = x * rstd,   rstd = 1 / sqrt(sum_d x_d^2 + eps)
/// eps is added to the *sum* of squares; a zero row gives a zero row with a finite gradient.
/// Backward: dx = rstd * (dy - (dy . y) y).
#pragma once

#include "kda/backend.h"
#include "kda/tensor_view.h"

namespace kda {

inline constexpr double kL2NormEps = 1e-6;

struct L2NormForwardParams {
  ConstTensorView x;  ///< [B,T,H,K] f64|f32|bf16|f16, any strides
  double eps = kL2NormEps;
  TensorView y;     ///< out, as x, rounded to its own dtype
  TensorView rstd;  ///< out, [B,T,H] f32|f64; may be absent
};

struct L2NormBackwardParams {
  ConstTensorView x;   ///< [B,T,H,K]
  ConstTensorView dy;  ///< [B,T,H,K] gradient of y
  double eps = kL2NormEps;
  TensorView dx;  ///< out, [B,T,H,K], written
};

void l2norm_forward(const L2NormForwardParams& params, const Context& context = {});
void l2norm_backward(const L2NormBackwardParams& params, const Context& context = {});

}  // namespace kda
