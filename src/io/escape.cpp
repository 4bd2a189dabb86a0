#include "io/escape.h"

#include <cstdint>

#include "io/utf8.h"

namespace kda::io {
namespace {

void append_hex_byte(std::string& out, std::uint8_t byte) {
  constexpr char kDigits[] = "0123456789abcdef";
  out += "\\x";
  out += kDigits[byte >> 4];
  out += kDigits[byte & 15];
}

/// Code points that reorder or hide text on a terminal: C1 controls, bidirectional marks,
/// zero-width.
bool hides(char32_t c) {
  return (c >= 0x80 && c < 0xA0) || (c >= 0x200B && c <= 0x200F) || (c >= 0x2028 && c <= 0x202E) ||
         (c >= 0x2066 && c <= 0x2069) || c == 0xFEFF;
}

}  // namespace

std::string escaped(std::string_view text, std::size_t max_bytes) {
  std::string out = "\"";
  std::size_t at = 0;
  while (at < text.size() && at < max_bytes) {
    const Utf8Step step = utf8_step(text.substr(at));
    const bool shown = step.kind == Utf8Step::Kind::kCharacter && step.code_point >= 0x20 &&
                       step.code_point != 0x7F && !hides(step.code_point);
    if (shown) {
      if (text[at] == '"' || text[at] == '\\') out += '\\';
      out.append(text.substr(at, step.length));
    } else if (text[at] == '\n') {
      out += "\\n";
    } else if (text[at] == '\t') {
      out += "\\t";
    } else if (text[at] == '\r') {
      out += "\\r";
    } else {
      for (std::size_t i = 0; i < step.length; ++i) {
        append_hex_byte(out, static_cast<std::uint8_t>(text[at + i]));
      }
    }
    at += step.length;
  }
  out += '"';
  if (at < text.size()) out += "… (" + std::to_string(text.size()) + " bytes)";
  return out;
}

}  // namespace kda::io
