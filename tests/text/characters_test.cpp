#include "text/characters.h"

#include <gtest/gtest.h>

#include <string>

namespace kda::text {
namespace {

TEST(Characters, Kinds_AtTheEdgesOfTheirRanges) {
  for (const char32_t c : {0x3007, 0x3400, 0x4DBF, 0x4E00, 0x9FFF, 0x20000, 0x323AF})
    EXPECT_TRUE(is_han(c) && !is_latin(c) && !is_other_letter(c)) << static_cast<unsigned>(c);
  for (const char32_t c : {0x3006, 0x3008, 0x33FF, 0x4DC0, 0xA000, 0x323B0, 0x3002, 0xFF0C})
    EXPECT_FALSE(is_han(c)) << static_cast<unsigned>(c);
  for (const char32_t c : std::u32string(U"AZazÀßéłŐƒẞﬁＡｚ"))
    EXPECT_TRUE(is_latin(c) && !is_han(c) && !is_other_letter(c)) << static_cast<unsigned>(c);
  for (const char32_t c : std::u32string(U"@[`{×÷0９。, —"))
    EXPECT_FALSE(is_latin(c) || is_other_letter(c)) << static_cast<unsigned>(c);
  for (const char32_t c : std::u32string(U"ΩжאعกあアㄅㄱA한"))
    EXPECT_EQ(is_other_letter(c), c != U'A') << static_cast<unsigned>(c);
}

// The set that Python's str.split() cuts at, which sacreBLEU removes before it counts.
TEST(Characters, WhiteSpace_IsPythons) {
  std::u32string spaces;
  for (char32_t c = 0; c < 0x11000; ++c) {
    if (is_white_space(c)) spaces += c;
  }
  EXPECT_EQ(spaces, std::u32string(U"\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002"
                                   U"\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029"
                                   U"\u202f\u205f\u3000"));
}

TEST(Characters, CodePoints_ReplaceWhatIsNotUtf8) {
  EXPECT_EQ(to_code_points("a中\xF0\x9F\x98\x80"), U"a中\U0001F600");
  EXPECT_EQ(to_code_points("a\xFF"
                           "b"),
            U"a\uFFFDb");
  EXPECT_EQ(to_code_points("\xE4\xB8"), U"\uFFFD\uFFFD");
  EXPECT_TRUE(to_code_points("").empty());
}

TEST(Characters, Scripts_CountWordsOfAlphabets) {
  const ScriptCounts mixed = count_scripts("在 GNOME 3 终端里，don't use Перо。");
  EXPECT_EQ(mixed.han, 4);
  EXPECT_EQ(mixed.latin, 3);
  EXPECT_EQ(mixed.other, 4);
  EXPECT_NEAR(mixed.share(Language::kChinese), 4.0 / 11, 1e-12);
  EXPECT_NEAR(mixed.share(Language::kEnglish), 3.0 / 11, 1e-12);
  EXPECT_EQ(count_scripts("123 ... ！").total(), 0);
  EXPECT_EQ(count_scripts("").share(Language::kChinese), 0.0);
}

}  // namespace
}  // namespace kda::text
