/// SwiGLU: silu(gate) * up, elementwise. One of the gated activations (gated_activation.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace kda::model {

/// gate and up [tokens,I] each in the activation dtype, any row stride; computed in f32 (f64).
/// Differentiable.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

/// The same from torch's operators: on other devices, and a second opinion in the tests.
at::Tensor swiglu_composed(const at::Tensor& gate, const at::Tensor& up);

/// Gradients of gate and up into `dgate` and `dup` from dy, all [tokens,I] in the activation dtype.
void swiglu_backward_composed(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& dy,
                              at::Tensor dgate, at::Tensor dup);

/// Weights of the feed-forward layer down( silu(gate(x)) * up(x) ), f32 (f64), without biases.
struct SwigluMlp {
  at::Tensor gate_proj;  ///< [I,d]
  at::Tensor up_proj;    ///< [I,d]; a neighbour of gate_proj in memory
  at::Tensor down_proj;  ///< [d,I]

  /// x [tokens,d] in the activation dtype, normed; returns the same shape and dtype.
  at::Tensor forward(const at::Tensor& x) const;
};

}  // namespace kda::model
