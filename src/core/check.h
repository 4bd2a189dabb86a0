// Building blocks of the argument checks: each throws one kda::Error that names the argument, what
// was expected and what was given.
#pragma once

#include <initializer_list>
#include <string>

#include "kda/error.h"
#include "kda/tensor_view.h"

namespace kda::core {

// One named extent of an expected shape, printed as "T=128".
struct Extent {
  const char* name;
  std::int64_t value;
};

[[noreturn]] void fail_argument(const std::string& message);
[[noreturn]] void fail_unsupported(const std::string& message);

// "[2,128,4,60]"
std::string shape_text(const ConstTensorView& view);

// Present, with exactly these extents.
void check_shape(const char* name, const ConstTensorView& view,
                 std::initializer_list<Extent> expected);
void check_rank(const char* name, const ConstTensorView& view, int rank, const char* layout);
void check_dtype(const char* name, const ConstTensorView& view,
                 std::initializer_list<DType> accepted);
void check_space(const char* name, const ConstTensorView& view, MemorySpace space,
                 const char* reference);
// Non-null data wherever there is an element to read, and no overlapping writes.
void check_readable(const char* name, const ConstTensorView& view);
void check_writable(const char* name, const TensorView& view);
void check_contiguous(const char* name, const ConstTensorView& view);

// Element `index` of a rank-1 i32|i64 host tensor.
std::int64_t index_at(const ConstTensorView& view, std::int64_t index);

}  // namespace kda::core
