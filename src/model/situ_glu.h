/// SiTU-GLU: a gated activation whose two branches are soft-capped.
///
///   cap(x, b) = b tanh(x / b)
///   y = cap(gate, beta) * sigmoid(gate) * cap(up, linear_beta),   |y| <= beta * linear_beta
/// The sigmoid takes the uncapped gate; near zero y is SwiGLU's up to second order. With
/// t = tanh(gate / beta), s = sigmoid(gate):
///   dy/dgate = cap(up) ((1 - t^2) s + beta t s (1 - s)),   dy/dup = beta t s (1 - tanh(up / lb)^2)
/// Computed in f32 (f64 for f64), rounded once. Source: Kimi K3 report (arXiv 2607.24653) equation
/// 12 and appendix B. Layers use it through gated_activation.h, which has the fused kernels; here
/// are the formulas in torch's operators, for other devices and types and as a second opinion.
#pragma once

#include <ATen/core/Tensor.h>

namespace kda::model {

struct SituBetas {
  double gate = 4.0;     ///< > 0
  double linear = 25.0;  ///< 0: the linear branch is not capped
};

/// gate and up [tokens,I] in the activation dtype; returns the same shape and dtype.
/// Differentiable.
at::Tensor situ_glu_composed(const at::Tensor& gate, const at::Tensor& up, const SituBetas& betas);

/// Gradients of gate and up into `dgate` and `dup` from dy, all [tokens,I] in the activation dtype.
void situ_glu_backward_composed(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& dy,
                                const SituBetas& betas, at::Tensor dgate, at::Tensor dup);

}  // namespace kda::model
