// Single elements of strided views, converted between their stored type and the arithmetic type.
#pragma once

#include <cstdint>

#include "core/float16.h"
#include "kda/tensor_view.h"

namespace kda::ref {

// Offset in elements of view[indices...].
template <typename View, typename... Index>
std::int64_t offset_of(const View& view, Index... indices) {
  std::int64_t offset = 0;
  std::size_t dim = 0;
  ((offset += static_cast<std::int64_t>(indices) * view.stride[dim++]), ...);
  return offset;
}

template <typename Real, typename... Index>
Real load(const ConstTensorView& view, Index... indices) {
  const std::int64_t at = offset_of(view, indices...);
  switch (view.dtype) {
    case DType::kF64:
      return static_cast<Real>(static_cast<const double*>(view.data)[at]);
    case DType::kF32:
      return static_cast<Real>(static_cast<const float*>(view.data)[at]);
    case DType::kBF16:
      return core::bf16_to_float(static_cast<const std::uint16_t*>(view.data)[at]);
    case DType::kF16:
      return core::f16_to_float(static_cast<const std::uint16_t*>(view.data)[at]);
    default:
      return Real(0);  // core has refused index types
  }
}

template <typename Real, typename... Index>
void store(const TensorView& view, Real value, Index... indices) {
  const std::int64_t at = offset_of(view, indices...);
  switch (view.dtype) {
    case DType::kF64:
      static_cast<double*>(view.data)[at] = static_cast<double>(value);
      break;
    case DType::kF32:
      static_cast<float*>(view.data)[at] = static_cast<float>(value);
      break;
    case DType::kBF16:
      static_cast<std::uint16_t*>(view.data)[at] = core::float_to_bf16(static_cast<float>(value));
      break;
    case DType::kF16:
      static_cast<std::uint16_t*>(view.data)[at] = core::float_to_f16(static_cast<float>(value));
      break;
    default:
      break;
  }
}

// An index tensor's element, i32 or i64.
template <typename... Index>
std::int64_t load_index(const ConstTensorView& view, Index... indices) {
  const std::int64_t at = offset_of(view, indices...);
  if (view.dtype == DType::kI32) return static_cast<const std::int32_t*>(view.data)[at];
  return static_cast<const std::int64_t*>(view.data)[at];
}

// What `value` becomes when it is stored as `dtype` and read back.
template <typename Real>
Real rounded_to(DType dtype, Real value) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<Real>(static_cast<float>(value));
    case DType::kBF16:
      return core::bf16_to_float(core::float_to_bf16(static_cast<float>(value)));
    case DType::kF16:
      return core::f16_to_float(core::float_to_f16(static_cast<float>(value)));
    default:
      return value;
  }
}

}  // namespace kda::ref
