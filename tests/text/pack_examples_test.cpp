#include "text/pack_examples.h"

#include <gtest/gtest.h>

#include <set>

#include "io/io_test_support.h"
#include "io/manifest.h"
#include "text/shard.h"
#include "text/tokenizer_fixture.h"

namespace kda::text {
namespace {

using test::expect_error;
using test::small_tokenizer;
using test::TempFolder;

std::string row(const std::string& src, const std::string& tgt, const std::string& direction) {
  return R"({"src": ")" + src + R"(", "tgt": ")" + tgt + R"(", "direction": ")" + direction +
         "\"}\n";
}

std::string document_text(const TokenDataset& data, std::uint64_t document) {
  std::vector<std::int64_t> ids(data.document_tokens(document));
  data.copy(document, 0, ids);
  return small_tokenizer().decode(std::vector<std::int32_t>(ids.begin(), ids.end()));
}

TEST(PackExamples, BothFormsBecomePromptAndAnswer) {
  const TempFolder folder;
  test::put(folder / "a.jsonl",
            row("the model reads", "模型读取", "en2zh") +
                row("每个文件", "every document", "zh2en") + "\n" +
                R"({"instruction": "walks", "input": "home", "output": "a\nb"})" + "\n" +
                R"({"instruction": "care", "output": "loss"})");
  const auto result = pack_examples({folder / "a.jsonl"}, small_tokenizer(), folder / "out", {});
  EXPECT_EQ(result.lines, 4u);
  EXPECT_EQ(result.train_examples, 4u);
  EXPECT_EQ(result.held_out_examples, 0u);
  const TokenDataset data = TokenDataset::open({folder / "out/train"});
  ASSERT_EQ(data.num_documents(), 8u);
  EXPECT_EQ(document_text(data, 0), "Translate to Chinese:\nthe model reads\n");
  EXPECT_EQ(document_text(data, 1), "模型读取");
  EXPECT_EQ(document_text(data, 2), "Translate to English:\n每个文件\n");
  EXPECT_EQ(document_text(data, 4), "walks\nhome\n");
  EXPECT_EQ(document_text(data, 5), "a\nb");
  EXPECT_EQ(document_text(data, 6), "care\n");
  const io::Manifest manifest = io::read_manifest(folder / "out");
  EXPECT_EQ(manifest.kind, "example-shards");
  EXPECT_EQ(manifest.info["prompt_version"], kPromptVersion);
}

/// What is learnt is what evaluation asks, id by id, and then EOS.
TEST(PackExamples, PromptsAreThoseOfEvaluation) {
  const TempFolder folder;
  const Tokenizer& t = small_tokenizer();
  std::string text;
  std::vector<std::string> sources = test::sentences(30, 5);
  for (const auto& s : sources)
    text += row(s, "每个 document", "en2zh");
  test::put(folder / "a.jsonl", text);
  pack_examples({folder / "a.jsonl"}, t, folder / "out", {});
  const TokenDataset data = TokenDataset::open({folder / "out/train"});
  ASSERT_EQ(data.num_documents(), 60u);
  for (std::uint64_t i = 0; i < 30; ++i) {
    const auto asked = encode_prompt(t, translation_prompt(Language::kChinese, sources[i]));
    std::vector<std::int64_t> ids(data.document_tokens(2 * i));
    data.copy(2 * i, 0, ids);
    EXPECT_EQ(std::vector<std::int32_t>(ids.begin(), ids.end()), asked);
    std::vector<std::int64_t> answer(data.document_tokens(2 * i + 1));
    data.copy(2 * i + 1, 0, answer);
    EXPECT_EQ(answer.back(), t.eos_id());
    EXPECT_EQ(std::count(answer.begin(), answer.end(), t.eos_id()), 1);
  }
}

TEST(PackExamples, BothDirectionsOfAPairAreOnOneSide) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 120; ++i) {
    const std::string en = "the model reads " + std::to_string(i);
    const std::string zh = "模型读取" + std::to_string(i);
    text += row(en, zh, "en2zh") + row(zh, en, "zh2en") + row(en, zh, "en2zh");
  }
  test::put(folder / "a.jsonl", text);
  PackExamplesOptions options;
  options.held_out_share = 0.2;
  const auto result =
      pack_examples({folder / "a.jsonl"}, small_tokenizer(), folder / "out", options);
  EXPECT_EQ(result.train_examples + result.held_out_examples, 360u);
  EXPECT_EQ(result.held_out_examples % 3, 0u);
  EXPECT_GT(result.held_out_examples, 30u);
  EXPECT_LT(result.held_out_examples, 120u);
  const auto numbers = [&](const char* part) {
    const TokenDataset data = TokenDataset::open({folder / "out" / part});
    std::set<std::string> found;
    for (std::uint64_t d = 0; d < data.num_documents(); d += 2) {
      const std::string prompt = document_text(data, d);
      std::string digits;
      for (const char c : prompt)
        if (c >= '0' && c <= '9') digits += c;
      found.insert(digits);
    }
    return found;
  };
  const auto train = numbers("train");
  for (const std::string& held : numbers("heldout"))
    EXPECT_FALSE(train.contains(held)) << held;
}

TEST(PackExamples, AnswersThatAreEmptyAreCountedNotLearnt) {
  const TempFolder folder;
  test::put(folder / "a.jsonl",
            row("a", "", "en2zh") + row("a", "  ", "zh2en") + row("the model", "模型", "en2zh"));
  const auto result = pack_examples({folder / "a.jsonl"}, small_tokenizer(), folder / "out", {});
  EXPECT_EQ(result.skipped_empty, 2u);
  EXPECT_EQ(result.train_examples, 1u);
  test::put(folder / "b.jsonl", row("a", "", "en2zh"));
  expect_error(ErrorCode::kInvalidArgument, {"at least one example"}, [&] {
    pack_examples({folder / "b.jsonl"}, small_tokenizer(), folder / "none", {});
  });
  EXPECT_FALSE(std::filesystem::exists(folder / "none/manifest.json"));
}

TEST(PackExamples, FaultsNameFileAndLine) {
  const TempFolder folder;
  const auto refused = [&](const std::string& line, const std::string& part) {
    test::put(folder / "a.jsonl", row("the model", "模型", "en2zh") + line + "\n");
    for (const std::string& expected : {part, std::string("line 2")}) {
      expect_error(ErrorCode::kIo, {expected}, [&] {
        pack_examples({folder / "a.jsonl"}, small_tokenizer(), folder / "out", {});
      });
    }
    EXPECT_FALSE(std::filesystem::exists(folder / "out/train/00000.kdatok"));
  };
  refused("{", "JSON");
  refused("[1]", "object");
  refused(R"({"src": "a"})", "tgt");
  refused(R"({"src": "a", "tgt": "b"})", "direction");
  refused(R"({"src": "a", "tgt": "b", "direction": "en2fr"})", "en2fr");
  refused(R"({"src": 1, "tgt": "b", "direction": "en2zh"})", "string");
  refused(R"({"instruction": "a"})", "output");
  refused(R"({"text": "a"})", "instruction");
  refused("\"\xff\"", "UTF-8");
}

TEST(PackExamples, TargetLanguageForLinesWithoutDirection) {
  const TempFolder folder;
  test::put(folder / "a.jsonl", R"({"src": "模型", "tgt": "the model"})");
  PackExamplesOptions options;
  options.target = Language::kEnglish;
  pack_examples({folder / "a.jsonl"}, small_tokenizer(), folder / "out", options);
  EXPECT_EQ(document_text(TokenDataset::open({folder / "out/train"}), 0),
            "Translate to English:\n模型\n");
}

TEST(PackExamples, CancelledLeavesNothing) {
  const TempFolder folder;
  test::put(folder / "a.jsonl", row("a b", "模型", "en2zh") + row("c d", "数据", "en2zh"));
  const auto result = pack_examples({folder / "a.jsonl"}, small_tokenizer(), folder / "out", {},
                                    [](const PackExamplesProgress& p) { return p.lines < 2; });
  EXPECT_TRUE(result.cancelled);
  EXPECT_FALSE(std::filesystem::exists(folder / "out/train"));
}

}  // namespace
}  // namespace kda::text
