/// Makes text from files safe to print: names in a hostile file may hold control characters.
#pragma once

#include <string>
#include <string_view>

namespace kda::io {

/// `text` in double quotes; quotes, backslashes, control characters and bytes that are not UTF-8
/// become escapes (\n, \x1b). At most `max_bytes` bytes of `text` are shown, then "…" and the
/// length.
std::string escaped(std::string_view text, std::size_t max_bytes = 200);

}  // namespace kda::io
