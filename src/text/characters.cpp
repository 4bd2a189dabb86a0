#include "text/characters.h"

#include <algorithm>
#include <iterator>

#include "io/utf8.h"

namespace kda::text {
namespace {

struct Range {
  char32_t first, last;
};

// Both in order, ends included.
constexpr Range kHan[] = {
    {0x3007, 0x3007},    // 〇
    {0x3400, 0x4DBF},    // Extension A
    {0x4E00, 0x9FFF},    // unified ideographs
    {0xF900, 0xFAFF},    // compatibility
    {0x20000, 0x2EE5D},  // Extensions B to F and I
    {0x2F800, 0x2FA1F},  // compatibility supplement
    {0x30000, 0x323AF},  // Extensions G and H
};
constexpr Range kLatin[] = {
    {'A', 'Z'},       {'a', 'z'},       {0xAA, 0xAA},     {0xBA, 0xBA},     {0xC0, 0xD6},
    {0xD8, 0xF6},     {0xF8, 0x2AF},    {0x1D00, 0x1D25}, {0x1E00, 0x1EFF}, {0x2C60, 0x2C7F},
    {0xA722, 0xA787}, {0xAB30, 0xAB5A}, {0xFB00, 0xFB06}, {0xFF21, 0xFF3A}, {0xFF41, 0xFF5A},
};
// Blocks as a whole: signs and digits inside them are rare and harmless here.
constexpr Range kOther[] = {
    {0x370, 0x373},      // Greek
    {0x376, 0x377},      //
    {0x37B, 0x37D},      //
    {0x386, 0x3FF},      //
    {0x400, 0x481},      // Cyrillic
    {0x48A, 0x559},      // Cyrillic, Armenian
    {0x560, 0x588},      //
    {0x5D0, 0x5F2},      // Hebrew
    {0x620, 0x64A},      // Arabic
    {0x66E, 0x6D3},      //
    {0x710, 0x72F},      // Syriac
    {0x900, 0xE3A},      // Indic, Sinhala, Thai
    {0xE40, 0x10FF},     // Lao, Tibetan, Myanmar, Georgian
    {0x1100, 0x11FF},    // Hangul Jamo
    {0x1200, 0x135A},    // Ethiopic
    {0x13A0, 0x13FD},    // Cherokee
    {0x1780, 0x17D3},    // Khmer
    {0x1820, 0x1878},    // Mongolian
    {0x1F00, 0x1FFC},    // Greek extended
    {0x3041, 0x3096},    // Hiragana
    {0x30A1, 0x30FA},    // Katakana
    {0x3105, 0x312F},    // Bopomofo
    {0x3131, 0x318E},    // Hangul compatibility
    {0xA960, 0xA97C},    // Hangul Jamo extended
    {0xAC00, 0xD7FB},    // Hangul syllables
    {0xFF66, 0xFFDC},    // half-width katakana and hangul
    {0x10280, 0x10D27},  // historic and minority scripts
};

template <std::size_t N>
bool contains(const Range (&ranges)[N], char32_t c) {
  const auto* const after =
      std::upper_bound(std::begin(ranges), std::end(ranges), c,
                       [](char32_t x, const Range& r) { return x < r.first; });
  return after != std::begin(ranges) && c <= std::prev(after)->last;
}

}  // namespace

bool is_han(char32_t c) { return contains(kHan, c); }
bool is_latin(char32_t c) { return contains(kLatin, c); }
bool is_other_letter(char32_t c) { return contains(kOther, c); }

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

std::u32string to_code_points(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const io::Utf8Step step = io::utf8_step(text);
    // A cut last character is as many replacements as it has bytes.
    out.append(step.kind == io::Utf8Step::Kind::kCharacter ? 1 : step.length, step.code_point);
    text.remove_prefix(step.length);
  }
  return out;
}

double ScriptCounts::share(Language language) const {
  if (total() == 0) return 0.0;
  return static_cast<double>(language == Language::kChinese ? han : latin) /
         static_cast<double>(total());
}

ScriptCounts count_scripts(std::string_view text) {
  ScriptCounts counts;
  bool in_word = false;
  for (const char32_t c : to_code_points(text)) {
    if (is_latin(c)) {
      if (!in_word) ++counts.latin;
      in_word = true;
      continue;
    }
    if (in_word && (c == U'\'' || c == U'\u2019')) continue;
    in_word = false;
    if (is_han(c)) {
      ++counts.han;
    } else if (is_other_letter(c)) {
      ++counts.other;
    }
  }
  return counts;
}

}  // namespace kda::text
