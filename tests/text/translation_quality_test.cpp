#include "text/translation_quality.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kda/error.h"

namespace kda::text {
namespace {

constexpr auto kEn = Language::kEnglish;
constexpr auto kZh = Language::kChinese;

const std::string kSource = "Open the file in the text editor.";
const std::string kReference = "在文本编辑器中打开该文件。";

SentenceVerdict to_chinese(const std::string& hypothesis) {
  return judge_translation(kSource, hypothesis, kReference, kZh);
}

TEST(TranslationSuccess, Reference_Passes) {
  EXPECT_TRUE(translation_success(kSource, kReference, kReference, kZh));
  EXPECT_TRUE(translation_success(kReference, kSource, kSource, kEn));
  EXPECT_TRUE(translation_success(kSource, "用文本编辑器打开文件。", kReference, kZh));
}

TEST(TranslationSuccess, EachFault_IsFoundAlone) {
  EXPECT_TRUE(to_chinese("").empty);
  EXPECT_TRUE(to_chinese(" \t\u3000").empty);
  EXPECT_FALSE(to_chinese("").success());

  const SentenceVerdict english = to_chinese("Open the file in an editor for text.");
  EXPECT_TRUE(english.wrong_language);
  EXPECT_FALSE(english.copy);
  EXPECT_FALSE(english.success());
  EXPECT_TRUE(to_chinese("ファイルをひらいてください").wrong_language);
  EXPECT_TRUE(to_chinese("... 123 !!!").wrong_language);

  EXPECT_TRUE(to_chinese(kSource).copy);
  EXPECT_TRUE(to_chinese("open THE file in the text editor").copy);

  const SentenceVerdict loop = to_chinese("在文本编辑器中打开打开打开打开打开打开");
  EXPECT_TRUE(loop.repetition);
  EXPECT_FALSE(loop.wrong_language || loop.wrong_length || loop.copy);
  EXPECT_FALSE(loop.success());

  EXPECT_TRUE(to_chinese("文件").wrong_length);
  EXPECT_TRUE(to_chinese("在文本编辑器中打开该文件，然后仔细检查每一行，保存所有改动，关闭窗口，"
                         "再次启动程序并且确认设置没有变化。")
                  .wrong_length);

  const SentenceVerdict other = to_chinese("今天天气很好，我们去公园吧。");
  EXPECT_TRUE(other.low_chrf);
  EXPECT_FALSE(other.empty || other.wrong_language || other.copy || other.repetition ||
               other.wrong_length);
}

TEST(TranslationSuccess, NoiseIntoEnglish_Fails) {
  // Any English has a chrF near 14 with any other.
  const SentenceVerdict noise =
      judge_translation("打开该文件。", "The weather is fine today, so let us go to the park.",
                        "Open that file in the text editor please.", kEn);
  EXPECT_GT(noise.chrf, 5.0);
  EXPECT_TRUE(noise.low_chrf);
}

// What the reference does cannot be a fault.
TEST(TranslationSuccess, Reference_ExcusesWhatItDoesItself) {
  EXPECT_TRUE(translation_success("3.14159", "3.14159", "3.14159", kZh));
  EXPECT_TRUE(
      translation_success("LibreOffice Writer", "LibreOffice Writer", "LibreOffice Writer", kZh));
  const std::string laugh = "哈哈哈哈哈哈哈哈哈哈哈哈";
  EXPECT_TRUE(translation_success("Ha ha ha ha ha!", laugh, laugh, kZh));
  EXPECT_FALSE(
      translation_success("What did you say?", laugh, "你刚才说了什么话？我没有听清。", kZh));
}

TEST(TranslationSuccess, Language_ByScript) {
  EXPECT_TRUE(in_language("请在 GNOME 终端中运行 apt-get update 命令。", kZh));
  EXPECT_TRUE(in_language("傳統字也是中文", kZh));
  EXPECT_FALSE(in_language("Use the 文件 menu", kZh));
  EXPECT_TRUE(in_language("It's José's naïve café.", kEn));
  EXPECT_FALSE(in_language("The 文件 is open", kEn));
  EXPECT_FALSE(in_language("Открыть файл", kEn));
  EXPECT_FALSE(in_language("", kEn));
}

TEST(TranslationSuccess, Repetition_NeedsALoop) {
  EXPECT_EQ(repeated_share("The cat sat on the mat and the dog on the log."), 0.0);
  EXPECT_EQ(repeated_share("Wait... what?"), 0.0);        // too short to be a loop
  EXPECT_NEAR(repeated_share("ababababab"), 1.0, 1e-12);  // 10 characters, 5 times
  EXPECT_EQ(repeated_share("abcabcabc xyzxyz"), 0.0);     // three times only
  EXPECT_NEAR(repeated_share("xx abcdabcdabcdabcd"), 16.0 / 18, 1e-12);
  EXPECT_NEAR(repeated_share("the file the file the file the file the file"), 1.0, 1e-12);
  EXPECT_EQ(repeated_share(""), 0.0);
}

TEST(TranslationSuccess, Counts_AddUp) {
  const std::vector<std::string> sources(4, kSource);
  const std::vector<std::string> references(4, kReference);
  const QualityCounts counts = judge_translations(
      sources, {kReference, "", kSource, "今天天气很好，我们去公园吧。"}, references, kZh);
  EXPECT_EQ(counts.sentences, 4);
  EXPECT_EQ(counts.empty, 1);
  EXPECT_EQ(counts.wrong_language, 1);
  EXPECT_EQ(counts.copy, 1);
  EXPECT_EQ(counts.success, 1);
  EXPECT_NEAR(counts.success_rate(), 0.25, 1e-12);
  EXPECT_NEAR(counts.language_match_rate(), 0.5, 1e-12);
  EXPECT_FALSE(counts.pass());
  EXPECT_TRUE(judge_translations(sources, references, references, kZh).pass());
  EXPECT_FALSE(QualityCounts{}.pass());
  try {
    judge_translations(sources, {kReference}, references, kZh);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("4 sources, 1 hypotheses"), std::string::npos);
  }
}

}  // namespace
}  // namespace kda::text
