/// The output norm of KDA: RMSNorm over each head's value channels, times the output gate.
///
///   y = x / sqrt(mean_V(x^2) + eps) * gain * sigmoid(gate)
/// One f32 island (f64 for f64) with one rounding at the end. Sources: Kimi Linear report
/// (arXiv 2510.26692) equation 10, Kimi K3 report (arXiv 2607.24653) equation 6.
#pragma once

#include <ATen/core/Tensor.h>

namespace kda::model {

/// x [tokens,HV,V] and gate [tokens,HV*V] in the activation dtype; gain [V] f32 (f64), shared by
/// all heads. Returns [tokens,HV*V] in the activation dtype. Differentiable.
at::Tensor gated_norm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& gain,
                      double eps);

/// The same from torch's operators: f64 on a CUDA device, and a second opinion in the tests.
at::Tensor gated_norm_composed(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& gain,
                               double eps);

}  // namespace kda::model
