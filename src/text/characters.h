/// Characters of a text by kind: what language checks and scores count.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/language.h"

namespace kda::text {

/// Chinese characters (all CJK ideographs of Unicode 15, and 〇).
bool is_han(char32_t c);
/// Latin letters with and without marks, full-width ones too.
bool is_latin(char32_t c);
/// Letters of the other scripts in use (Greek, Cyrillic, Arabic, Indic, kana, hangul, ...).
bool is_other_letter(char32_t c);
/// White space of Unicode, and the separators U+001C to U+001F: what Python's str.split() cuts at.
bool is_white_space(char32_t c);

/// Characters of valid UTF-8; invalid bytes become U+FFFD each.
std::u32string to_code_points(std::string_view text);

/// How a text divides into scripts. A Chinese character and a word of an alphabet carry about the
/// same, so words are counted there, not letters: one product name does not make a Chinese sentence
/// English.
struct ScriptCounts {
  std::int64_t han = 0;    ///< Chinese characters
  std::int64_t latin = 0;  ///< runs of Latin letters (an apostrophe inside belongs to the word)
  std::int64_t other = 0;  ///< letters of other scripts

  std::int64_t total() const { return han + latin + other; }
  /// Share of the script of `language`, 0 for a text without letters.
  double share(Language language) const;
};

ScriptCounts count_scripts(std::string_view text);

}  // namespace kda::text
