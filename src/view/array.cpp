#include "view/array.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "core/float16.h"
#include "view/text.h"

namespace kda::view {
namespace {

/// An empty tensor may have dimensions of any size; bounded ones keep index arithmetic in 64 bits.
void check_dimensions(const std::string& what, std::span<const std::int64_t> shape) {
  for (const std::int64_t dim : shape) {
    if (dim > kMaxDimension) {
      refuse(what + ": dimension " + std::to_string(dim) + " is over " +
             std::to_string(kMaxDimension));
    }
  }
}

std::vector<std::int64_t> row_major(std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  // Nothing is ever read of an empty array, and its other dimensions may be too large to multiply.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return strides;
  for (std::size_t axis = shape.size(); axis-- > 1;) {
    strides[axis - 1] = strides[axis] * shape[axis];
  }
  return strides;
}

bool is_row_major(const Array& array) {
  std::int64_t expected = 1;
  for (std::size_t axis = array.rank(); axis-- > 0;) {
    if (array.shape[axis] == 1) continue;
    if (array.strides[axis] != expected) return false;
    expected *= array.shape[axis];
  }
  return true;
}

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <class T, class Widen>
void read_as(const Array& array, std::int64_t offset, std::int64_t stride, std::span<double> out,
             const Widen& widen) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
  for (double& value : out) {
    value = widen(load<T>(array.data + offset * kSize));
    offset += stride;
  }
}

/// The same elements in rows without gaps, in memory of their own.
Array row_major_copy(const Array& array) {
  const std::int64_t elements = array.num_elements();
  if (elements > kMaxElements) {
    refuse("reshape: would copy " + std::to_string(elements) + " elements, at most " +
           std::to_string(kMaxElements));
  }
  const auto size = static_cast<std::int64_t>(io::size_of(array.dtype));
  auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(elements * size));
  std::byte* to = bytes->data();
  for_each_line(array, [&](std::int64_t offset, std::int64_t stride, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i, to += size) {
      std::memcpy(to, array.data + (offset + i * stride) * size, static_cast<std::size_t>(size));
    }
  });
  return {array.dtype, bytes->data(), array.shape, row_major(array.shape), 0, bytes};
}

}  // namespace

std::int64_t Array::num_elements() const {
  std::int64_t product = 1;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (const std::int64_t dim : shape)
    product *= dim;
  return product;
}

Array array_of(const io::StTensor& tensor) {
  if (tensor.shape.size() > kMaxRank) {
    refuse("tensor: expected at most " + std::to_string(kMaxRank) + " dimensions, got " +
           std::to_string(tensor.shape.size()));
  }
  check_dimensions("tensor", tensor.shape);
  return {tensor.dtype, tensor.data.data(), tensor.shape, row_major(tensor.shape), 0, nullptr};
}

Array transposed(const Array& array, std::span<const std::int64_t> axes) {
  const auto rank = static_cast<std::int64_t>(array.rank());
  if (axes.size() != array.rank()) {
    refuse("transpose: expected " + std::to_string(rank) + " axes, got " +
           std::to_string(axes.size()));
  }
  Array out = array;
  std::vector<bool> seen(array.rank(), false);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::int64_t axis = axes[i] < 0 ? axes[i] + rank : axes[i];
    if (axis < 0 || axis >= rank || seen[static_cast<std::size_t>(axis)]) {
      refuse("transpose: expected each axis of 0.." + std::to_string(rank - 1) + " once, got " +
             shape_text(axes));
    }
    const auto from = static_cast<std::size_t>(axis);
    seen[from] = true;
    out.shape[i] = array.shape[from];
    out.strides[i] = array.strides[from];
  }
  return out;
}

Array reshaped(const Array& array, std::span<const std::int64_t> shape) {
  check_dimensions("reshape", shape);
  const std::int64_t elements = array.num_elements();
  const auto bad = [&] {
    refuse("reshape: " + shape_text(array.shape) + " does not fit into " + shape_text(shape));
  };
  if (shape.size() > kMaxRank) {
    refuse("reshape: expected at most " + std::to_string(kMaxRank) + " dimensions, got " +
           std::to_string(shape.size()));
  }
  std::vector<std::int64_t> wanted(shape.begin(), shape.end());
  std::int64_t known = 1;
  std::int64_t* open = nullptr;
  for (std::int64_t& dim : wanted) {
    if (dim == -1 && open == nullptr) {
      open = &dim;
    } else if (dim < 0 || __builtin_mul_overflow(known, dim, &known)) {
      bad();
    }
  }
  if (open != nullptr) {
    if (known == 0 || elements % known != 0) bad();
    *open = elements / known;
    known *= *open;
  }
  if (known != elements) bad();
  Array out = is_row_major(array) ? array : row_major_copy(array);
  out.strides = row_major(wanted);
  out.shape = std::move(wanted);
  return out;
}

Array sliced(const Array& array, std::span<const Slice> slices) {
  Array out{array.dtype, array.data, {}, {}, array.offset, array.copy};
  for (std::size_t axis = 0; axis < array.rank(); ++axis) {
    const Slice& s = slices[axis];
    // Of an empty slice the start may lie at the end; it is never read.
    if (s.count > 0 || s.drops_axis) out.offset += s.start * array.strides[axis];
    if (s.drops_axis) continue;
    out.shape.push_back(s.count);
    out.strides.push_back(array.strides[axis] * s.step);
  }
  return out;
}

void read_elements(const Array& array, std::int64_t offset, std::int64_t stride,
                   std::span<double> out) {
  const auto cast = [](auto value) { return static_cast<double>(value); };
  switch (array.dtype) {
    case io::StDtype::kF64:
      return read_as<double>(array, offset, stride, out, cast);
    case io::StDtype::kF32:
      return read_as<float>(array, offset, stride, out, cast);
    case io::StDtype::kF16:
      return read_as<std::uint16_t>(array, offset, stride, out, [](std::uint16_t bits) {
        return static_cast<double>(core::f16_to_float(bits));
      });
    case io::StDtype::kBF16:
      return read_as<std::uint16_t>(array, offset, stride, out, [](std::uint16_t bits) {
        return static_cast<double>(core::bf16_to_float(bits));
      });
    case io::StDtype::kI64:
      return read_as<std::int64_t>(array, offset, stride, out, cast);
    case io::StDtype::kI32:
      return read_as<std::int32_t>(array, offset, stride, out, cast);
    case io::StDtype::kI16:
      return read_as<std::int16_t>(array, offset, stride, out, cast);
    case io::StDtype::kI8:
      return read_as<std::int8_t>(array, offset, stride, out, cast);
    case io::StDtype::kU8:
    case io::StDtype::kBool:
      return read_as<std::uint8_t>(array, offset, stride, out, cast);
  }
}

}  // namespace kda::view
