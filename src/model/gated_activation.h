/// The gated activations of feed-forward layers, chosen by the config: SwiGLU (swiglu.h) or
/// SiTU-GLU (situ_glu.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "model/layer_config.h"

namespace kda::model {

/// gate and up [tokens,I] in the activation dtype, any strides; returns the same shape and dtype.
/// Differentiable.
at::Tensor gated_activation(const at::Tensor& gate, const at::Tensor& up,
                            const Activation& activation);

/// The same without autograd, for layers with a backward of their own: unit stride in a row and
/// equal row strides of gate and up.
at::Tensor gated_activation_forward(const at::Tensor& gate, const at::Tensor& up,
                                    const Activation& activation);

/// Gradients of gate and up, side by side [tokens,2I], from dy [tokens,I] contiguous.
at::Tensor gated_activation_backward(const at::Tensor& gate, const at::Tensor& up,
                                     const at::Tensor& dy, const Activation& activation);

}  // namespace kda::model
