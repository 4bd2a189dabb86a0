#include "model/tensors.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "kda/error.h"

namespace kda::model {

at::ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return at::kFloat;
    case DType::kBF16:
      return at::kBFloat16;
    case DType::kF64:
      return at::kDouble;
    default:
      throw Error(ErrorCode::kInternal, std::string("model: no tensors of type ") + name_of(dtype));
  }
}

DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::kF32;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kDouble:
      return DType::kF64;
    default:
      throw Error(ErrorCode::kInternal, std::string("model: unexpected tensor type ") +
                                            c10::toString(tensor.scalar_type()));
  }
}

at::ScalarType island_type_of(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

std::span<const std::int64_t> host_span(const at::Tensor& indices) {
  return {indices.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(indices.numel())};
}

std::optional<at::Tensor> given(const at::Tensor& tensor) {
  if (!tensor.defined()) return std::nullopt;
  return tensor;
}

at::Tensor index_tensor(const std::vector<std::int64_t>& values, c10::Device device) {
  at::Tensor tensor =
      at::empty({static_cast<std::int64_t>(values.size())}, at::TensorOptions().dtype(at::kLong));
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<std::int64_t>());
  return tensor.to(device);
}

at::Tensor joined(at::TensorList parts, std::int64_t dim) {
  if (parts.size() == 1) return parts.front();
  const at::Tensor& first = parts.front();
  std::int64_t offset = first.storage_offset();
  std::int64_t extent = 0;
  bool neighbours = first.dim() == 2;
  for (const at::Tensor& part : parts) {
    if (!neighbours) break;
    neighbours = part.storage().unsafeGetStorageImpl() == first.storage().unsafeGetStorageImpl() &&
                 part.strides() == first.strides() && part.storage_offset() == offset &&
                 part.stride(1) == 1 && part.size(1 - dim) == first.size(1 - dim);
    offset += part.size(dim) * part.stride(dim);
    extent += part.size(dim);
  }
  if (dim == 1 && extent > first.stride(0)) neighbours = false;
  if (!neighbours) return at::cat(parts, dim);
  return dim == 0 ? first.as_strided({extent, first.size(1)}, first.strides())
                  : first.as_strided({first.size(0), extent}, first.strides());
}

bool has_unit_rows(const at::Tensor& matrix) {
  return matrix.size(-1) <= 1 || matrix.stride(-1) == 1;
}

std::string shape_text(const at::Tensor& tensor) {
  std::string text = "[";
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (i > 0) text += ',';
    text += std::to_string(tensor.size(i));
  }
  return text + "]";
}

}  // namespace kda::model
