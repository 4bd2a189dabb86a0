/// Small helpers on tensors shared by the layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kda/types.h"

namespace kda::model {

/// kF32, kBF16, kF64 to torch's type; others throw kInternal.
at::ScalarType scalar_type_of(DType dtype);

/// The reverse, for floating tensors of the model.
DType dtype_of(const at::Tensor& tensor);

/// The type in which norms, gates, states and losses are computed: f64 for f64, else f32.
at::ScalarType island_type_of(at::ScalarType type);

/// An i64 tensor in host memory as a span; it must be contiguous and outlive the span.
std::span<const std::int64_t> host_span(const at::Tensor& indices);

/// An undefined tensor as an absent one: autograd functions take no undefined inputs.
std::optional<at::Tensor> given(const at::Tensor& tensor);

/// The values as an i64 tensor on `device`.
at::Tensor index_tensor(const std::vector<std::int64_t>& values, c10::Device device = c10::kCPU);

/// The parts laid side by side along `dim` (0 or 1 of matrices): a view when they already are
/// neighbours in one memory block, else a copy.
at::Tensor joined(at::TensorList parts, std::int64_t dim);

/// Whether rows of a matrix are contiguous (unit stride in the last dimension).
bool has_unit_rows(const at::Tensor& matrix);

/// "[2,128]" for error texts.
std::string shape_text(const at::Tensor& tensor);

}  // namespace kda::model
