/// Numbers and shapes as text, written straight into a reply: a JSON value per number of a large
/// tensor would cost sixteen bytes each.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kda::view {

/// Throws Error(kInvalidArgument).
[[noreturn]] void refuse(const std::string& text);

/// "[2, 3]", valid JSON.
std::string shape_text(std::span<const std::int64_t> shape);

/// Six significant digits; `null` for NaN and infinities, which JSON cannot say.
void append_number(std::string& to, double value);
void append_number(std::string& to, std::int64_t value);

/// `text` as a JSON string; bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view text);

}  // namespace kda::view
