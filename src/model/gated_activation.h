/// The gated activations of feed-forward layers, chosen by the config: SwiGLU or SiTU-GLU.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/layer_config.h"

namespace kda::model {

/// gate and up [tokens,I] in the activation dtype, any row stride. Differentiable.
at::Tensor gated_activation(const at::Tensor& gate, const at::Tensor& up,
                            const Activation& activation);

/// The same without autograd, for layers with a backward of their own. `both` [rows,2I] holds gate
/// and up side by side; returns [rows,I].
at::Tensor gated_activation_forward(const at::Tensor& both, const Activation& activation);

/// Gradient [rows,2I] of `both` from the gradient `dy` [rows,I] of the activation.
at::Tensor gated_activation_backward(const at::Tensor& both, const at::Tensor& dy,
                                     const Activation& activation);

}  // namespace kda::model
