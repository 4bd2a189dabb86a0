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

}  // namespace kda::model
