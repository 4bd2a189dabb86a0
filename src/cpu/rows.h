// One head of a [B,T,heads,dim] tensor as rows over time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kda/tensor_view.h"

namespace kda::cpu {

// Row t, element i at data + t * row + i * step (in elements of dtype).
template <typename Byte>
struct BasicRows {
  Byte* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t row = 0;
  std::int64_t step = 1;

  bool defined() const { return data != nullptr; }
  BasicRows from(std::int64_t t) const {
    return {data + t * row * static_cast<std::int64_t>(size_of(dtype)), dtype, row, step};
  }
  bool plain_f32() const { return dtype == DType::kF32 && step == 1; }
};
using Rows = BasicRows<const std::byte>;
using RowsOut = BasicRows<std::byte>;

namespace detail {
template <typename Byte, typename View>
BasicRows<Byte> rows_of(const View& view, std::int64_t b, std::int64_t begin, std::int64_t head) {
  BasicRows<Byte> rows;
  if (!view.defined() || view.data == nullptr) return rows;
  const std::int64_t offset = b * view.stride[0] + begin * view.stride[1] + head * view.stride[2];
  rows.data =
      static_cast<Byte*>(view.data) + offset * static_cast<std::int64_t>(size_of(view.dtype));
  rows.dtype = view.dtype;
  rows.row = view.stride[1];
  rows.step = view.rank > 3 ? view.stride[3] : 1;
  return rows;
}
}  // namespace detail

// Rows begin, begin + 1, ... of (batch row b, head); rank-3 tensors are rows of one element.
inline Rows rows_of(const ConstTensorView& view, std::int64_t b, std::int64_t begin,
                    std::int64_t head) {
  return detail::rows_of<const std::byte>(view, b, begin, head);
}
inline RowsOut rows_of(const TensorView& view, std::int64_t b, std::int64_t begin,
                       std::int64_t head) {
  return detail::rows_of<std::byte>(view, b, begin, head);
}

}  // namespace kda::cpu
