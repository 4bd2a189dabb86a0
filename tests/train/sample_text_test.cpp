#include "train/sample_text.h"

#include <gtest/gtest.h>

#include <csignal>

#include "io/utf8.h"
#include "kda/error.h"
#include "train/fixture.h"
#include "train/signals.h"

namespace kda::train {
namespace {

using testing::ScratchFolder;
using testing::tokenizer;

model::CausalLM tiny_model() {
  model::KDAConfig config = model::KDAConfig::preset("tiny");
  config.vocab_size = tokenizer().vocab_size() + 7;  // padded, as some models are
  config.initializer_range = 0.3;                    // far from uniform: samples are varied bytes
  model::ModelOptions options;
  options.seed = 11;
  return {config, options};
}

TextSampleOptions hot() {
  TextSampleOptions options;
  options.sampling.temperature = 1.5;
  options.sampling.seed = 42;
  options.max_new_tokens = 200;
  return options;
}

TEST(SampleText, SameSeedSameText) {
  ScratchFolder scratch;
  const model::CausalLM model = tiny_model();
  const TextSample a = sample_text(model, tokenizer(), "小猫", hot());
  const TextSample b = sample_text(model, tokenizer(), "小猫", hot());
  EXPECT_EQ(a.text, b.text);
  TextSampleOptions other = hot();
  other.sampling.seed = 43;
  EXPECT_NE(sample_text(model, tokenizer(), "小猫", other).text, a.text);
  other = hot();
  other.row = 1;
  EXPECT_NE(sample_text(model, tokenizer(), "小猫", other).text, a.text);
}

TEST(SampleText, EveryStreamedPieceIsWholeUtf8) {
  ScratchFolder scratch;
  const model::CausalLM model = tiny_model();
  std::string streamed;
  int pieces = 0;
  const TextSample sample =
      sample_text(model, tokenizer(), "小猫", hot(), [&](std::string_view text) {
        EXPECT_TRUE(io::is_utf8(text));
        streamed += text;
        ++pieces;
      });
  EXPECT_EQ(streamed, sample.text);
  EXPECT_GT(pieces, 10);
  // Byte pieces are common in this untrained model: some characters came in parts.
  EXPECT_LT(pieces, sample.new_tokens);
}

TEST(SampleText, TextGoesOnAfterThePrompt) {
  ScratchFolder scratch;
  const model::CausalLM model = tiny_model();
  TextSampleOptions options = hot();
  options.max_new_tokens = 0;
  const TextSample none = sample_text(model, tokenizer(), "the clerk", options);
  EXPECT_EQ(none.text, "");
  EXPECT_EQ(none.new_tokens, 0);
  EXPECT_EQ(none.reason, model::FinishReason::kLength);
}

TEST(SampleText, EmptyPromptStartsFromBos) {
  ScratchFolder scratch;
  const model::CausalLM model = tiny_model();
  ASSERT_GE(tokenizer().info().bos_id, 0);
  const TextSample sample = sample_text(model, tokenizer(), "", hot());
  EXPECT_EQ(sample.prompt_tokens, 1);
  EXPECT_GT(sample.new_tokens, 0);
}

TEST(SampleText, InvalidUtf8PromptIsRefused) {
  ScratchFolder scratch;
  const model::CausalLM model = tiny_model();
  EXPECT_THROW(sample_text(model, tokenizer(), "\xE4\xBD", hot()), Error);
}

TEST(SampleText, StopRequestEndsItWithinAToken) {
  ScratchFolder scratch;
  const model::CausalLM model = tiny_model();
  TextSampleOptions options = hot();
  options.max_new_tokens = 100000;
  int pieces = 0;
  const TextSample sample = sample_text(model, tokenizer(), "小猫", options, [&](std::string_view) {
    if (++pieces == 3) request_stop(SIGINT);
  });
  EXPECT_EQ(sample.reason, model::FinishReason::kCancelled);
  EXPECT_LE(sample.new_tokens, 20);
}

}  // namespace
}  // namespace kda::train
