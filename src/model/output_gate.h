/// o * sigmoid(gate): the gate on the output of attention.
#pragma once

#include <ATen/core/Tensor.h>

namespace kda::model {

/// o and gate [tokens,C] in the activation dtype, any strides; computed in f32 (f64), rounded once.
/// Differentiable; only its arguments are kept for backward.
at::Tensor output_gate(const at::Tensor& o, const at::Tensor& gate);

}  // namespace kda::model
