#include "eval/translate.h"

#include <gtest/gtest.h>

#include <string>

#include "model/model_test_support.h"
#include "text/prompts.h"
#include "text/tokenizer_fixture.h"

namespace kda::test {
namespace {

using eval::translate;
using eval::TranslateOptions;
using eval::Translation;
using model::CausalLM;
using text::Language;

CausalLM model_for(const text::Tokenizer& tokenizer, std::int64_t padding = 0) {
  model::KDAConfig config = small_config();
  config.vocab_size = tokenizer.vocab_size() + padding;
  config.initializer_range = 0.2;
  return make_model(config, DType::kF32, 9);
}

TEST(Translate_Batches, GiveTheSameTextInTheSameOrder) {
  const text::Tokenizer& tokenizer = small_tokenizer();
  const CausalLM model = model_for(tokenizer, 16);
  const std::vector<std::string> sources{"the model reads tokens and writes a document", "a",
                                         "模型 读取 数据", "", "every\ndocument\nends"};
  TranslateOptions options;
  options.max_new_tokens = 12;
  for (const std::int64_t beam : {1, 3}) {
    options.beam = beam;
    options.batch = 1;
    const std::vector<Translation> alone =
        translate(model, tokenizer, sources, Language::kChinese, options);
    options.batch = 4;
    const std::vector<Translation> together =
        translate(model, tokenizer, sources, Language::kChinese, options);
    ASSERT_EQ(alone.size(), sources.size());
    for (std::size_t i = 0; i < sources.size(); ++i) {
      EXPECT_EQ(alone[i].text, together[i].text) << i;
      EXPECT_EQ(alone[i].tokens, together[i].tokens) << i;
      EXPECT_LE(alone[i].tokens, 12);
      EXPECT_EQ(alone[i].text.find('\n'), std::string::npos);
    }
    EXPECT_NE(alone[0].text, alone[2].text);
  }
}

// What evaluation feeds is what training taught: the same prompt, token by token.
TEST(Translate_Prompt, IsThatOfTraining) {
  const text::Tokenizer& tokenizer = small_tokenizer();
  const CausalLM model = model_for(tokenizer);
  const std::string source = "the model reads";
  const text::EncodedExample example =
      text::translation_example(tokenizer, Language::kEnglish, source, "");
  std::vector<std::int64_t> prompt(
      example.ids.begin(),
      example.ids.begin() + static_cast<std::ptrdiff_t>(example.prompt_tokens));
  model::GenerateOptions how;
  how.max_new_tokens = 10;
  const auto stops = text::answer_stop_ids(tokenizer);
  how.stop_ids.assign(stops.begin(), stops.end());
  const auto row = model::generate(model, {prompt}, how).front();
  const std::vector<std::int32_t> ids(row.ids.begin(), row.ids.end());
  TranslateOptions options;
  options.max_new_tokens = 10;
  const Translation made =
      translate(model, tokenizer, {source}, Language::kEnglish, options).front();
  EXPECT_EQ(made.text, text::answer_text(tokenizer.decode(ids)));
  EXPECT_EQ(made.tokens, static_cast<std::int64_t>(ids.size()));
  EXPECT_EQ(made.reason, row.reason);
}

TEST(Translate_Progress, CountsUpAndMayStop) {
  const text::Tokenizer& tokenizer = small_tokenizer();
  const CausalLM model = model_for(tokenizer);
  const std::vector<std::string> sources(5, "the model");
  TranslateOptions options;
  options.batch = 2;
  options.max_new_tokens = 3;
  std::int64_t last = 0;
  translate(model, tokenizer, sources, Language::kEnglish, options, [&](std::int64_t done) {
    EXPECT_GE(done, last);
    last = done;
  });
  EXPECT_EQ(last, 5);
  EXPECT_THROW(translate(model, tokenizer, sources, Language::kEnglish, options,
                         [](std::int64_t) { throw Error(ErrorCode::kInternal, "stop"); }),
               Error);
  EXPECT_TRUE(translate(model, tokenizer, {}, Language::kEnglish, options).empty());
  options.batch = 0;
  EXPECT_THROW(translate(model, tokenizer, sources, Language::kEnglish, options), Error);
}

}  // namespace
}  // namespace kda::test
