/// L2 normalisation over the last dimension, as KDA applies it to queries and keys.
///
///   y = x * rstd,   rstd = 1 / sqrt(sum_d x_d^2 + eps)
/// eps is added to the *sum* of squares; a zero row gives a zero row with a finite gradient.
/// Backward: dx = rstd * (dy - (dy . y) y).
#pragma once

#include "kda/backend.h"
#include "kda/tensor_view.h"

namespace kda {

/// Added to the sum of squares by default.
inline constexpr double kL2NormEps = 1e-6;

/// One forward call.
struct L2NormForwardParams {
  ConstTensorView x;        ///< [B,T,H,K] f64|f32|bf16|f16, any strides
  double eps = kL2NormEps;  ///< > 0, added to the sum of squares
  TensorView y;             ///< out, as x, rounded to its own dtype
  TensorView rstd;          ///< out, [B,T,H] f32|f64; may be absent
};

/// One backward call; the norms are computed again.
struct L2NormBackwardParams {
  ConstTensorView x;        ///< [B,T,H,K]
  ConstTensorView dy;       ///< [B,T,H,K] gradient of y
  double eps = kL2NormEps;  ///< as in the forward call
  TensorView dx;            ///< out, [B,T,H,K], written
};

/// Throws kInvalidArgument or kUnsupported; thread safe; asynchronous on the CUDA backend.
void l2norm_forward(const L2NormForwardParams& params, const Context& context = {});
/// Errors, threads and streams as of `l2norm_forward`.
void l2norm_backward(const L2NormBackwardParams& params, const Context& context = {});

}  // namespace kda
