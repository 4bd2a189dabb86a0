/// A tensor of a file under another shape: strides over bytes that are not copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "io/safetensors.h"

namespace kda::view {

/// Most elements that a reshape may copy and that one request reads; larger tensors are sampled.
inline constexpr std::int64_t kMaxElements = std::int64_t{1} << 26;
inline constexpr std::size_t kMaxRank = 16;
inline constexpr std::int64_t kMaxDimension = std::int64_t{1} << 40;

/// Element (i, j, ...) lies at `data[(offset + i * strides[0] + j * strides[1] + ...) * size]`.
/// The bytes belong to a mapped file that outlives the array, or to `copy`.
struct Array {
  io::StDtype dtype = io::StDtype::kF32;
  const std::byte* data = nullptr;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< in elements; may be negative
  std::int64_t offset = 0;            ///< in elements
  std::shared_ptr<const std::vector<std::byte>> copy;

  std::int64_t num_elements() const;
  std::size_t rank() const { return shape.size(); }
};

/// One axis of a slice, Python's `start:stop:step` with step != 0; or, with `drops_axis`, one
/// index.
struct Slice {
  std::int64_t start = 0;
  std::int64_t count = 0;
  std::int64_t step = 1;
  bool drops_axis = false;
};

/// The whole tensor. Error(kInvalidArgument) for more than kMaxRank or kMaxDimension.
Array array_of(const io::StTensor& tensor);

/// Axes in the order `axes`, a permutation of 0..rank-1 (negative counts from the end).
Array transposed(const Array& array, std::span<const std::int64_t> axes);

/// Another shape with as many elements; one dimension may be -1. Copies the elements when the
/// array is not laid out row by row: Error(kInvalidArgument) when these are more than kMaxElements.
Array reshaped(const Array& array, std::span<const std::int64_t> shape);

/// One Slice per axis, already inside the bounds.
Array sliced(const Array& array, std::span<const Slice> slices);

/// out[i] = element at `offset + i * stride` (both in elements), exact: i64 over 2^53 rounds.
void read_elements(const Array& array, std::int64_t offset, std::int64_t stride,
                   std::span<double> out);

/// Calls `line(offset, stride, count)` for every run of elements along the last axis, in row-major
/// order; a scalar is one run of one element.
template <class Line>
void for_each_line(const Array& array, const Line& line) {
  const std::size_t rank = array.rank();
  if (array.num_elements() == 0) return;
  const std::int64_t count = rank == 0 ? 1 : array.shape[rank - 1];
  const std::int64_t stride = rank == 0 ? 1 : array.strides[rank - 1];
  std::vector<std::int64_t> index(rank, 0);
  std::int64_t offset = array.offset;
  for (;;) {
    line(offset, stride, count);
    if (rank < 2) return;
    std::size_t axis = rank - 1;
    for (;;) {
      if (axis == 0) return;
      --axis;
      offset += array.strides[axis];
      if (++index[axis] < array.shape[axis]) break;
      offset -= array.strides[axis] * array.shape[axis];
      index[axis] = 0;
    }
  }
}

}  // namespace kda::view
