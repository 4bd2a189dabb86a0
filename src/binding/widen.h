// The two conversions that happen before an operator sees its arguments.
#pragma once

#include "binding/functional.h"

namespace kda::binding {

// Casts without loss what the library wants wider (g, beta, parameters and states in bf16 or f16),
// and brings a_log to [HV] and dt_bias to [HV,K]. Recorded by autograd, so gradients arrive in the
// caller's dtype and shape. What cannot be converted without loss is left for the library to
// refuse.
KdaArguments widened(KdaArguments arguments);
OutputNormArguments widened(OutputNormArguments norm, const at::Tensor& q);

std::optional<at::Tensor> widened_a_log(const std::optional<at::Tensor>& a_log,
                                        const c10::SymInt& value_heads, at::ScalarType wide);
std::optional<at::Tensor> widened_dt_bias(const std::optional<at::Tensor>& dt_bias,
                                          const c10::SymInt& value_heads,
                                          const c10::SymInt& key_dim, at::ScalarType wide);

// Under autocast: q, k, v of different dtypes meet in the widest of them. Nothing is narrowed: the
// gate and its prefix sums are f32 whatever the mode.
KdaArguments promoted(KdaArguments arguments);

}  // namespace kda::binding
