/// Nested JSON arrays from a stream of elements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kda::view {

/// `[[e, e], [e, e]]` of `shape`, row-major; `append(text)` writes the next element. A scalar is
/// the element alone; of an empty tensor, whose other dimensions may be huge, only `[]`.
template <class Append>
void append_nested(std::string& to, const std::vector<std::int64_t>& shape, const Append& append,
                   std::size_t axis = 0) {
  if (axis == shape.size()) {
    append(to);
    return;
  }
  if (axis == 0 && std::find(shape.begin(), shape.end(), 0) != shape.end()) {
    to += "[]";
    return;
  }
  to += '[';
  for (std::int64_t i = 0; i < shape[axis]; ++i) {
    if (i > 0) to += ',';
    append_nested(to, shape, append, axis + 1);
  }
  to += ']';
}

}  // namespace kda::view
