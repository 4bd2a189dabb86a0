/// The feed-forward layer: down( silu(gate(x)) * up(x) ), without biases.
#pragma once

#include <ATen/core/Tensor.h>

namespace kda::model {

/// silu(gate) * up, elementwise; [tokens,I] each in the activation dtype, any row stride; computed
/// in f32 (f64). Differentiable.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

/// The same from torch's operators: f64 on a CUDA device, and a second opinion in the tests.
at::Tensor swiglu_composed(const at::Tensor& gate, const at::Tensor& up);

/// Weights of the layer, f32 (f64).
struct SwigluMlp {
  at::Tensor gate_proj;  ///< [I,d]
  at::Tensor up_proj;    ///< [I,d]; a neighbour of gate_proj in memory
  at::Tensor down_proj;  ///< [d,I]

  /// x [tokens,d] in the activation dtype, normed; returns the same shape and dtype.
  at::Tensor forward(const at::Tensor& x) const;
};

}  // namespace kda::model
