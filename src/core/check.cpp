#include "core/check.h"

#include <algorithm>
#include <array>

namespace kda::core {

void fail_argument(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

void fail_unsupported(const std::string& message) { throw Error(ErrorCode::kUnsupported, message); }

std::string shape_text(const ConstTensorView& view) {
  std::string text = "[";
  for (int i = 0; i < view.rank; ++i) {
    if (i > 0) text += ",";
    text += std::to_string(view.shape[static_cast<std::size_t>(i)]);
  }
  return text + "]";
}

namespace {
std::string expected_text(std::initializer_list<Extent> expected) {
  std::string text = "[";
  bool first = true;
  for (const Extent& extent : expected) {
    if (!first) text += ",";
    first = false;
    text += std::string(extent.name) + "=" + std::to_string(extent.value);
  }
  return text + "]";
}
}  // namespace

void check_shape(const char* name, const ConstTensorView& view,
                 std::initializer_list<Extent> expected) {
  if (!view.defined()) {
    fail_argument(std::string(name) + ": required, expected " + expected_text(expected) +
                  ", given none");
  }
  bool equal = view.rank == static_cast<int>(expected.size());
  std::size_t i = 0;
  for (const Extent& extent : expected) {
    if (equal && view.shape[i] != extent.value) equal = false;
    ++i;
  }
  if (!equal) {
    fail_argument(std::string(name) + ": expected " + expected_text(expected) + ", given " +
                  shape_text(view));
  }
  check_readable(name, view);
}

void check_rank(const char* name, const ConstTensorView& view, int rank, const char* layout) {
  if (!view.defined()) {
    fail_argument(std::string(name) + ": required, expected " + layout + ", given none");
  }
  if (view.rank != rank) {
    fail_argument(std::string(name) + ": expected " + layout + " (rank " + std::to_string(rank) +
                  "), given " + shape_text(view));
  }
  check_readable(name, view);
}

void check_dtype(const char* name, const ConstTensorView& view,
                 std::initializer_list<DType> accepted) {
  if (!view.defined()) return;
  if (std::find(accepted.begin(), accepted.end(), view.dtype) != accepted.end()) return;
  std::string list;
  for (DType dtype : accepted) {
    if (!list.empty()) list += " or ";
    list += name_of(dtype);
  }
  fail_argument(std::string(name) + ": expected dtype " + list + ", given " + name_of(view.dtype));
}

void check_space(const char* name, const ConstTensorView& view, MemorySpace space,
                 const char* reference) {
  if (!view.defined() || view.space == space) return;
  fail_argument(std::string(name) + ": expected " + name_of(space) + " memory like " + reference +
                ", given " + name_of(view.space));
}

void check_readable(const char* name, const ConstTensorView& view) {
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[static_cast<std::size_t>(i)] < 0) {
      fail_argument(std::string(name) + ": negative extent in " + shape_text(view));
    }
  }
  if (view.defined() && view.data == nullptr && view.numel() > 0) {
    fail_argument(std::string(name) + ": null data for shape " + shape_text(view));
  }
}

void check_writable(const char* name, const TensorView& view) {
  check_readable(name, view);
  if (view.numel() == 0) return;
  // Distinct elements need distinct addresses. Sorted by stride, each dimension must step over
  // everything that the smaller ones span (the usual sufficient condition).
  std::array<std::size_t, kMaxRank> order{};
  std::size_t count = 0;
  for (std::size_t d = 0; d < static_cast<std::size_t>(view.rank); ++d) {
    if (view.shape[d] <= 1) continue;
    std::size_t at = count++;
    for (; at > 0 && view.stride[order[at - 1]] > view.stride[d]; --at)
      order[at] = order[at - 1];
    order[at] = d;
  }
  std::int64_t span = 1;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t d = order[i];
    if (view.stride[d] < span) {
      fail_argument(std::string(name) + ": output elements overlap (shape " + shape_text(view) +
                    ", stride " + std::to_string(view.stride[d]) + " in dimension " +
                    std::to_string(d) + ")");
    }
    span += view.stride[d] * (view.shape[d] - 1);
  }
}

void check_contiguous(const char* name, const ConstTensorView& view) {
  if (!view.defined() || view.is_contiguous()) return;
  fail_argument(std::string(name) + ": expected a contiguous tensor, given strides that are not");
}

std::int64_t index_at(const ConstTensorView& view, std::int64_t index) {
  const std::int64_t offset = index * view.stride[0];
  if (view.dtype == DType::kI32) return static_cast<const std::int32_t*>(view.data)[offset];
  return static_cast<const std::int64_t*>(view.data)[offset];
}

}  // namespace kda::core
