#include "view/text.h"

#include <array>
#include <charconv>
#include <cmath>

#include "io/json.h"
#include "kda/error.h"

namespace kda::view {

void refuse(const std::string& text) { throw Error(ErrorCode::kInvalidArgument, text); }

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t dim : shape) {
    if (text.size() > 1) text += ", ";
    append_number(text, dim);
  }
  return text + "]";
}

void append_number(std::string& to, double value) {
  if (!std::isfinite(value)) {
    to += "null";
    return;
  }
  std::array<char, 32> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::general, 6)
                       .ptr;
  to.append(buffer.data(), end);
}

void append_number(std::string& to, std::int64_t value) {
  std::array<char, 24> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  to.append(buffer.data(), end);
}

std::string json_string(std::string_view text) {
  return io::Json(std::string(text)).dump(-1, ' ', false, io::Json::error_handler_t::replace);
}

}  // namespace kda::view
