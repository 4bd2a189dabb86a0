#include "eval/text_session.h"

#include <gtest/gtest.h>

#include <string>

#include "io/atomic_file.h"
#include "io/io_test_support.h"
#include "io/utf8.h"
#include "model/model_test_support.h"
#include "text/tokenizer_fixture.h"

namespace kda::test {
namespace {

namespace fs = std::filesystem;
using eval::Continuation;
using eval::ContinueOptions;
using eval::TextSession;
using model::CausalLM;
using model::FinishReason;

const text::Tokenizer& tokenizer() { return small_tokenizer(); }

CausalLM model_of(std::uint64_t seed) {
  model::KDAConfig config = small_config();
  config.vocab_size = tokenizer().vocab_size();
  config.initializer_range = 0.2;
  return make_model(config, DType::kF32, seed);
}

const CausalLM& shared_model() {
  static const CausalLM model = model_of(2);
  return model;
}

ContinueOptions tokens(std::int64_t count, double temperature = 0) {
  ContinueOptions options;
  options.max_new_tokens = count;
  options.sampling.temperature = temperature;
  options.sampling.seed = 11;
  options.stop_at_eos = false;
  return options;
}

TextSession begun() {
  TextSession session(shared_model(), tokenizer());
  session.append("the model reads 数据");
  return session;
}

// Saved after N tokens and taken up again, the text goes on as if nothing had happened: recurrent
// state, convolution window and the token that was not fed yet are all there.
TEST(TextSession_SavedAndRestored, GoesOnAsIfUninterrupted) {
  for (const double temperature : {0.0, 1.3}) {
    for (const std::int64_t first : {0, 1, 63, 64, 65}) {
      TextSession whole = begun();
      whole.continue_text(tokens(first + 20, temperature));
      TextSession part = begun();
      part.continue_text(tokens(first, temperature));
      const TempFolder folder;
      part.save(folder / "session");
      TextSession restored = TextSession::load(folder / "session", shared_model(), tokenizer());
      EXPECT_EQ(restored.ids(), part.ids());
      const Continuation rest = restored.continue_text(tokens(20, temperature));
      EXPECT_EQ(rest.new_tokens, 20);
      EXPECT_EQ(restored.ids(), whole.ids()) << first << " " << temperature;
      EXPECT_EQ(restored.text(), whole.text());
    }
  }
}

TEST(TextSession_K3, LatentsAreSavedToo) {
  model::KDAConfig config = model::KDAConfig::preset("k3-tiny");
  config.vocab_size = tokenizer().vocab_size();
  const CausalLM model = make_model(config, DType::kF32, 4);
  for (const std::int64_t first : {0, 1, 64}) {
    TextSession whole(model, tokenizer());
    whole.append("the model reads");
    whole.continue_text(tokens(first + 10));
    TextSession part(model, tokenizer());
    part.append("the model reads");
    part.continue_text(tokens(first));
    const TempFolder folder;
    part.save(folder / "s");
    TextSession restored = TextSession::load(folder / "s", model, tokenizer());
    restored.continue_text(tokens(10));
    EXPECT_EQ(restored.ids(), whole.ids()) << first;
  }
}

TEST(TextSession_Append, IsReadInTurn) {
  TextSession session = begun();
  session.continue_text(tokens(5));
  session.append(" and writes");
  const Continuation more = session.continue_text(tokens(5));
  // The last generated token and the four or so of the text that was added.
  EXPECT_GE(more.prompt_tokens, 3);
  TextSession once(shared_model(), tokenizer());
  EXPECT_EQ(session.text().rfind("the model reads 数据", 0), 0U);
  EXPECT_NE(session.text().find(" and writes"), std::string::npos);
  EXPECT_EQ(session.fed(), static_cast<std::int64_t>(session.ids().size()) - 1);
}

TEST(TextSession_Stream, GivesTheTextInWholeCharacters) {
  TextSession session = begun();
  std::string streamed;
  int calls = 0;
  const Continuation made = session.continue_text(tokens(60, 1.5), [&](std::string_view text) {
    EXPECT_TRUE(io::is_utf8(text));
    streamed += text;
    ++calls;
    return true;
  });
  EXPECT_EQ(streamed, made.text);
  EXPECT_GE(calls, 60);
  EXPECT_EQ(made.reason, FinishReason::kLength);
  // Cancelled within a token, and still a session that goes on.
  TextSession cut = begun();
  int seen = 0;
  const Continuation stopped =
      cut.continue_text(tokens(60, 1.5), [&](std::string_view) { return ++seen < 7; });
  EXPECT_EQ(stopped.reason, FinishReason::kCancelled);
  EXPECT_EQ(stopped.new_tokens, 7);
  cut.continue_text(tokens(53, 1.5));
  EXPECT_EQ(cut.ids(), session.ids());
}

TEST(TextSession_StopToken, EndsTheText) {
  TextSession probe = begun();
  probe.continue_text(tokens(6));
  ContinueOptions options = tokens(20);
  options.stop_ids = {static_cast<std::int32_t>(probe.ids().back())};
  TextSession session = begun();
  const Continuation made = session.continue_text(options);
  EXPECT_EQ(made.reason, FinishReason::kStop);
  EXPECT_LE(made.new_tokens, 5);
  try {
    session.continue_text(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("stop token"), std::string::npos) << error.what();
  }
  session.append(" more");
  EXPECT_NO_THROW(session.continue_text(options));
}

TEST(TextSession_Folder, IsReplacedInOneStep) {
  const TempFolder folder;
  TextSession session = begun();
  session.save(folder / "s");
  session.continue_text(tokens(4));
  session.save(folder / "s");
  int files = 0;
  for (const auto& entry : fs::directory_iterator(folder / "s")) {
    (void)entry;
    ++files;
  }
  EXPECT_EQ(files, 2);  // session.json and one state
  EXPECT_EQ(TextSession::load(folder / "s", shared_model(), tokenizer()).ids(), session.ids());
  io::write_file_atomic(folder / "other", "x");
  EXPECT_THROW(session.save(folder.path()), Error);  // somebody else's folder
}

std::string load_error(const fs::path& path, const CausalLM& model, const text::Tokenizer& spm) {
  try {
    TextSession::load(path, model, spm);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(TextSession_Foreign, IsRefused) {
  const TempFolder folder;
  begun().save(folder / "s");
  const auto holds = [&](const std::string& error, const std::string& part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  holds(load_error(folder / "s", model_of(3), tokenizer()), "another model");
  holds(load_error(folder / "s", shared_model(), small_tokenizer(text::TokenizerModel::kUnigram)),
        "another tokenizer");
  holds(load_error(folder / "none", shared_model(), tokenizer()), "none");
  const std::string good = io::read_file(folder / "s" / "session.json");
  const auto spoil = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    io::write_file_atomic(folder / "s" / "session.json", text);
    return load_error(folder / "s", shared_model(), tokenizer());
  };
  holds(spoil("\"version\":1", "\"version\":9"), "version 1");
  holds(spoil("state-1", "../../state-1"), "names no state file");
  holds(spoil("\"ids\":[", "\"ids\":[99999,"), "expected values in [0,");
  holds(spoil("\"draws\":0", "\"draws\":-1.5e9"), "session");
  holds(spoil("{", "["), "session.json");
  fs::remove(folder / "s" / "state-1.safetensors");
  io::write_file_atomic(folder / "s" / "session.json", good);
  holds(load_error(folder / "s", shared_model(), tokenizer()), "state-1");
}

// The repetition penalty sees what was fed before, also after a restart.
TEST(TextSession_RepetitionPenalty, SeesTheWholeText) {
  ContinueOptions options = tokens(30);
  options.sampling.repetition_penalty = 1.7;
  TextSession whole = begun();
  whole.continue_text(options);
  TextSession plain = begun();
  plain.continue_text(tokens(30));
  EXPECT_NE(whole.ids(), plain.ids());
  TextSession part = begun();
  options.max_new_tokens = 12;
  part.continue_text(options);
  options.max_new_tokens = 18;
  part.continue_text(options);
  EXPECT_EQ(part.ids(), whole.ids());
}

TEST(ContinueTexts_Batch, IsThatOfEachAlone) {
  const std::vector<std::string> prompts{"the model",
                                         "数据 每个 文件 and a document that is longer", "", "a"};
  ContinueOptions options = tokens(15, 1.1);
  const auto together = eval::continue_texts(shared_model(), tokenizer(), prompts, options);
  ASSERT_EQ(together.size(), prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    options.row = i;
    const auto alone = eval::continue_texts(shared_model(), tokenizer(), {prompts[i]}, options);
    EXPECT_EQ(alone[0].text, together[i].text) << i;
    TextSession session(shared_model(), tokenizer());
    session.append(prompts[i]);
    EXPECT_EQ(session.continue_text(options).text, together[i].text) << i;
  }
  EXPECT_TRUE(eval::continue_texts(shared_model(), tokenizer(), {}, options).empty());
}

}  // namespace
}  // namespace kda::test
