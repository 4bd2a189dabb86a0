/// SiTU-GLU: a gated activation whose two branches are soft-capped.
///
///   cap(x, b) = b tanh(x / b)
///   y = cap(gate, beta) * sigmoid(gate) * cap(up, linear_beta),   |y| <= beta * linear_beta
/// The sigmoid takes the uncapped gate; near zero y is SwiGLU's up to second order. With
/// t = tanh(gate / beta), s = sigmoid(gate):
///   dy/dgate = cap(up) ((1 - t^2) s + beta t s (1 - s)),   dy/dup = beta t s (1 - tanh(up / lb)^2)
/// Computed in f32 (f64 for f64), rounded once. Source: Kimi K3 report (arXiv 2607.24653) equation
/// 12 and appendix B.
#pragma once

#include <ATen/core/Tensor.h>

namespace kda::model {

struct SituBetas {
  double gate = 4.0;
  double linear = 25.0;  ///< 0: the linear branch is not capped
};

/// gate and up [tokens,I] in the activation dtype, any row stride; returns the same shape and
/// dtype. Differentiable.
at::Tensor situ_glu(const at::Tensor& gate, const at::Tensor& up, const SituBetas& betas);

/// The same from torch's operators: a second opinion in the tests.
at::Tensor situ_glu_composed(const at::Tensor& gate, const at::Tensor& up, const SituBetas& betas);

}  // namespace kda::model
