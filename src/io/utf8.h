/// UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kda::io {

/// U+FFFD in UTF-8.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

/// What stands at the beginning of a byte sequence.
struct Utf8Step {
  enum class Kind : std::uint8_t {
    kCharacter,   ///< `length` bytes form the character `code_point`
    kInvalid,     ///< the first byte cannot begin a character here; `length` is 1
    kIncomplete,  ///< all bytes so far may still become a character; `length` is what is there
  };
  Kind kind;
  std::size_t length;
  char32_t code_point;  ///< U+FFFD unless kCharacter
};

/// Reads the first character of `text`, which must not be empty.
Utf8Step utf8_step(std::string_view text);

/// Byte offset of the first byte that is not part of a valid character; `text.size()` if none.
std::size_t find_invalid_utf8(std::string_view text);

inline bool is_utf8(std::string_view text) { return find_invalid_utf8(text) == text.size(); }

/// Copy of `text` in which every invalid byte (and every byte of a cut last character) is U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

/// Appends the UTF-8 form of a code point (at most U+10FFFF, no surrogate).
void append_utf8(std::string& text, char32_t code_point);

}  // namespace kda::io
