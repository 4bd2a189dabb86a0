#include "io/utf8.h"

#include <gtest/gtest.h>

#include "io/escape.h"

namespace kda::io {
namespace {

using Kind = Utf8Step::Kind;

TEST(Utf8_Step_EveryCodePointRoundTrips, All) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    const Utf8Step step = utf8_step(text);
    ASSERT_EQ(step.kind, Kind::kCharacter) << static_cast<unsigned>(c);
    ASSERT_EQ(step.length, text.size());
    ASSERT_EQ(step.code_point, c);
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      ASSERT_EQ(utf8_step(std::string_view(text).substr(0, cut)).kind, Kind::kIncomplete);
    }
  }
}

TEST(Utf8_Step_RefusesBadForms, Table) {
  const std::string bad[] = {"\x80",
                             "\xBF",
                             "\xC0\x80",
                             "\xC1\xBF",  // stray and overlong
                             "\xE0\x80\x80",
                             "\xE0\x9F\xBF",
                             "\xED\xA0\x80",  // overlong, surrogate
                             "\xED\xBF\xBF",
                             "\xF0\x80\x80\x80",
                             "\xF0\x8F\xBF\xBF",
                             "\xF4\x90\x80\x80",
                             "\xF5\x80\x80\x80",
                             "\xFE",
                             "\xFF",
                             "\xE4\x41",
                             "\xF0\x9F\x41"};
  for (const auto& text : bad) {
    EXPECT_EQ(utf8_step(text).kind, Kind::kInvalid) << escaped(text);
    EXPECT_EQ(utf8_step(text).length, 1u);
    EXPECT_EQ(find_invalid_utf8("ab" + text), 2u);
  }
}

TEST(Utf8_Replace, KeepsGoodText) {
  EXPECT_EQ(replace_invalid_utf8("héllo 中"), "héllo 中");
  EXPECT_EQ(replace_invalid_utf8("a\xFF\xFEz"), "a\xEF\xBF\xBD\xEF\xBF\xBDz");
  EXPECT_EQ(replace_invalid_utf8("a\xE4\xB8"), "a\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(replace_invalid_utf8(""), "");
}

TEST(Escape_Quotes, ControlCharactersAndBidi) {
  EXPECT_EQ(escaped("a\"b\\c"), R"("a\"b\\c")");
  EXPECT_EQ(escaped("\n\t\r\x1b[31m"), R"("\n\t\r\x1b[31m")");
  EXPECT_EQ(escaped(std::string_view("\0", 1)), R"("\x00")");
  EXPECT_EQ(escaped("\xFF"), R"("\xff")");
  EXPECT_EQ(escaped("\u202E\u200B"), R"("\xe2\x80\xae\xe2\x80\x8b")");
  EXPECT_EQ(escaped("\x7F\u0085\u2066\uFEFF"), R"("\x7f\xc2\x85\xe2\x81\xa6\xef\xbb\xbf")");
  EXPECT_EQ(escaped("中文"), "\"中文\"");
}

TEST(Escape_Shortens, LongText) {
  EXPECT_EQ(escaped("abcdef", 3), "\"abc\"… (6 bytes)");
  EXPECT_EQ(escaped("中文字", 4), "\"中文\"… (9 bytes)");  // never half a character
}

}  // namespace
}  // namespace kda::io
