/// Non-owning, strided views of tensors: the only way data enters and leaves the operator.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kda/types.h"

namespace kda {

/// Largest number of dimensions.
inline constexpr int kMaxRank = 5;

/// Rank-0 views mean "absent": every optional tensor of a Params struct defaults to that.
/// Shapes and strides are in elements. A stride may be 0 (broadcast) for inputs only.
template <bool kReadOnly>
struct BasicTensorView {
  /// What `data` is.
  using Pointer = std::conditional_t<kReadOnly, const void*, void*>;

  Pointer data = nullptr;                       ///< first element, in `space`
  DType dtype = DType::kF32;                    ///< element type
  MemorySpace space = MemorySpace::kHost;       ///< where the memory is
  int rank = 0;                                 ///< dimensions; 0: absent
  std::array<std::int64_t, kMaxRank> shape{};   ///< extents of the first `rank` dimensions
  std::array<std::int64_t, kMaxRank> stride{};  ///< steps in elements

  BasicTensorView() = default;  ///< absent

  /// A mutable view converts to a read-only one.
  template <bool kOther, typename = std::enable_if_t<kReadOnly && !kOther>>
  BasicTensorView(const BasicTensorView<kOther>& other)  // NOLINT(google-explicit-constructor)
      : data(other.data),
        dtype(other.dtype),
        space(other.space),
        rank(other.rank),
        shape(other.shape),
        stride(other.stride) {}

  /// Whether the tensor was given.
  bool defined() const { return rank > 0; }

  /// Number of elements; 0 when absent.
  std::int64_t numel() const {
    if (rank == 0) return 0;
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i)
      n *= shape[static_cast<std::size_t>(i)];
    return n;
  }

  /// Row-major without gaps.
  bool is_contiguous() const {
    std::int64_t expected = 1;
    for (int i = rank - 1; i >= 0; --i) {
      const auto d = static_cast<std::size_t>(i);
      if (shape[d] != 1 && stride[d] != expected) return false;
      expected *= shape[d];
    }
    return true;
  }

  /// The same memory with two dimensions swapped; `state_vk` memory becomes a `state_kv` view by
  /// `view.transposed(2, 3)`.
  BasicTensorView transposed(int a, int b) const {
    BasicTensorView out = *this;
    const auto i = static_cast<std::size_t>(a);
    const auto j = static_cast<std::size_t>(b);
    out.shape[i] = shape[j];
    out.shape[j] = shape[i];
    out.stride[i] = stride[j];
    out.stride[j] = stride[i];
    return out;
  }
};

/// Written by a call.
using TensorView = BasicTensorView<false>;
/// Read by a call.
using ConstTensorView = BasicTensorView<true>;

/// Compile-time element type to DType; 16-bit floats have no standard C++20 type and go through
/// the `dtype` overload of `view_of`.
template <typename T>
constexpr DType dtype_of() {
  using U = std::remove_cv_t<T>;
  static_assert(std::is_same_v<U, double> || std::is_same_v<U, float> ||
                    std::is_same_v<U, std::int64_t> || std::is_same_v<U, std::int32_t>,
                "no DType for this element type");
  if constexpr (std::is_same_v<U, double>) return DType::kF64;
  if constexpr (std::is_same_v<U, float>) return DType::kF32;
  if constexpr (std::is_same_v<U, std::int64_t>) return DType::kI64;
  return DType::kI32;
}

/// \cond
namespace detail {
template <bool kReadOnly>
BasicTensorView<kReadOnly> contiguous_view(typename BasicTensorView<kReadOnly>::Pointer data,
                                           DType dtype, std::initializer_list<std::int64_t> shape) {
  BasicTensorView<kReadOnly> view;
  view.data = data;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  std::size_t i = 0;
  for (std::int64_t extent : shape)
    view.shape[i++] = extent;
  std::int64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    view.stride[d] = stride;
    stride *= view.shape[d];
  }
  return view;
}
}  // namespace detail
/// \endcond

/// Row-major view of host memory: `view_of(q.data(), {B, T, H, K})`.
template <typename T>
auto view_of(T* data, std::initializer_list<std::int64_t> shape) {
  return detail::contiguous_view<std::is_const_v<T>>(data, dtype_of<T>(), shape);
}

/// The same for element types that C++ has no name for (bf16, f16).
inline TensorView view_of(void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
  return detail::contiguous_view<false>(data, dtype, shape);
}
/// The same for memory that is only read.
inline ConstTensorView view_of(const void* data, DType dtype,
                               std::initializer_list<std::int64_t> shape) {
  return detail::contiguous_view<true>(data, dtype, shape);
}

}  // namespace kda
