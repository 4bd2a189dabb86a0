/// Causal depthwise convolution with SiLU over packed sequences.
///
///   z_t[c] = sum_{j=0..W-1} w[c,j] x_{t-W+1+j}[c];   y = silu(z)
/// Rows before the start of a sequence are zero, or come from the window that a decoder carries;
/// w[c,W-1] multiplies the current token (cross-correlation, as in Conv1d). Computed in f32 (f64).
/// Source: Kimi Linear report (arXiv 2510.26692) section 4; Hugging Face layout of the weight.
#pragma once

#include <ATen/core/Tensor.h>

namespace kda::model {

/// x [tokens,C] in the activation dtype, any row stride; weight [C,1,W] f32 (f64), W in 2..4;
/// cu_seqlens [N+1] i64 on the device of x. Returns [tokens,C] in the activation dtype.
/// Differentiable with respect to x and weight.
at::Tensor short_conv(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& cu_seqlens);

/// Without gradients, with the inputs of the last W-1 tokens: `window` [N,W-1,C] f32 (f64), any
/// strides with unit channels, is read first and then advanced over this piece in place.
at::Tensor short_conv_cached(const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& cu_seqlens, at::Tensor& window);

/// The same two from torch's operators: f64 on a CUDA device, and a second opinion in the tests.
at::Tensor short_conv_composed(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& cu_seqlens);
at::Tensor short_conv_cached_composed(const at::Tensor& x, const at::Tensor& weight,
                                      const at::Tensor& cu_seqlens, at::Tensor& window);

}  // namespace kda::model
