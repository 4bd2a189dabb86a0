#include "text/tokenizer_trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "io/io_test_support.h"
#include "io/utf8.h"
#include "text/tokenizer_fixture.h"

namespace kda::text {
namespace {

using test::expect_error;
using test::feed;
using test::sentences;
using test::train_options;

constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;

class EveryTrainer : public testing::TestWithParam<TokenizerModel> {
 protected:
  TokenizerTrainOptions options(std::int32_t vocab = 400) const {
    return train_options(GetParam(), vocab);
  }
};
INSTANTIATE_TEST_SUITE_P(Trainer, EveryTrainer,
                         testing::Values(TokenizerModel::kBpe, TokenizerModel::kUnigram),
                         [](const auto& param) {
                           return param.param == TokenizerModel::kBpe ? "Bpe" : "Unigram";
                         });

bool mentions(const std::vector<std::string>& warnings, const std::string& part) {
  return std::any_of(warnings.begin(), warnings.end(),
                     [&](const std::string& w) { return w.find(part) != std::string::npos; });
}

TEST_P(EveryTrainer, SameInputSameBytes) {
  const auto a = train_tokenizer(feed(sentences(300)), options(340));
  const auto b = train_tokenizer(feed(sentences(300)), options(340));
  EXPECT_EQ(a.model_bytes, b.model_bytes);
  EXPECT_EQ(Tokenizer::from_bytes(a.model_bytes).vocab_size(), 340);
  EXPECT_TRUE(a.warnings.empty());
  EXPECT_EQ(a.used_bytes, a.corpus_bytes);
}

TEST_P(EveryTrainer, LearnsWordsOfBothScripts) {
  const Tokenizer& t = test::small_tokenizer(GetParam());
  EXPECT_TRUE(t.id_of("▁training").has_value());
  EXPECT_TRUE(t.id_of("▁模型").has_value() || t.id_of("模型").has_value());
  EXPECT_LT(t.encode("the training model reads tokens").size(), 12u);
}

TEST_P(EveryTrainer, TooLargeAVocabularyShrinksWithAWarning) {
  const auto r = train_tokenizer(feed(sentences(300)), options(8192));
  const auto t = Tokenizer::from_bytes(r.model_bytes);
  EXPECT_LT(t.vocab_size(), 8192);
  EXPECT_GT(t.vocab_size(), 300);
  EXPECT_TRUE(mentions(r.warnings, "fills a vocabulary of " + std::to_string(t.vocab_size())));
  EXPECT_EQ(t.decode(t.encode("今天 the park")), "今天 the park");
}

TEST_P(EveryTrainer, TinyCorpora) {
  for (const auto& documents : std::vector<std::vector<std::string>>{{"a"},
                                                                     {"中"},
                                                                     {"ab"},
                                                                     {"aaaaaaaa"},
                                                                     {"1"},
                                                                     {"a b"},
                                                                     {"\t\na\n"},
                                                                     {"▁x▅y"},
                                                                     {"。"},
                                                                     {"\xEF\xBF\xBD"},
                                                                     {"\xEF\xBF\xBEz"},
                                                                     {"\xF4\x8F\xBF\xBF"},
                                                                     {"\x01\x02"},
                                                                     {"abcabcabc", "abc"},
                                                                     {"q w e r t y"}}) {
    const auto r = train_tokenizer(feed(documents), options(300));
    const auto t = Tokenizer::from_bytes(r.model_bytes);
    EXPECT_EQ(t.decode(t.encode(documents[0])), documents[0]);
    EXPECT_TRUE(mentions(r.warnings, "fills a vocabulary"));
  }
}

TEST_P(EveryTrainer, NothingToLearnIsAnError) {
  for (const auto& documents : std::vector<std::vector<std::string>>{
           {}, {""}, {"   "}, {" \n\t\r\n ", ""}, {std::string(3, '\0')}, {"▁▅"}}) {
    expect_error(kBad, {"only white space"}, [&] { train_tokenizer(feed(documents), options()); });
  }
  expect_error(kBad, {"document 2: byte 1 is not UTF-8"}, [&] {
    train_tokenizer(feed({"ok", "a\xFF"}), options());
  });
}

TEST_P(EveryTrainer, MoreCharactersThanRoom) {
  std::vector<std::string> documents;
  for (char32_t c = 0x4E00; c < 0x4E00 + 3000; ++c) {
    std::string text = "the common words ";
    io::append_utf8(text, c);
    documents.push_back(text);
  }
  auto o = options(600);
  o.character_coverage = 1;
  const auto r = train_tokenizer(feed(documents), o);
  EXPECT_TRUE(mentions(r.warnings, "spelled in bytes"));
  const auto t = Tokenizer::from_bytes(r.model_bytes);
  EXPECT_LE(t.vocab_size(), 600);
  for (const auto& text : {documents[0], documents[2999]})
    EXPECT_EQ(t.decode(t.encode(text)), text);
}

TEST_P(EveryTrainer, LongLinesAreCutNotSkipped) {
  std::string line;
  for (const auto& s : sentences(600))
    line += s + " ";
  ASSERT_GT(line.size(), 20'000u);
  const auto r = train_tokenizer(feed({line}), options(8192));
  EXPECT_EQ(r.used_bytes, line.size());
  const auto t = Tokenizer::from_bytes(r.model_bytes);
  EXPECT_LT(t.encode(line).size(), line.size());
  if (GetParam() == TokenizerModel::kBpe) {
    EXPECT_TRUE(t.id_of("▁training").has_value());
  }
  const std::string unbroken(50'000, 'x');
  EXPECT_EQ(train_tokenizer(feed({unbroken}), options()).used_bytes, unbroken.size());
}

TEST_P(EveryTrainer, SamplingIsDeterministicAndAboutRight) {
  auto o = options(8192);
  o.max_bytes = 20'000;
  const auto documents = sentences(2000);
  const auto a = train_tokenizer(feed(documents), o);
  const auto b = train_tokenizer(feed(documents), o);
  EXPECT_EQ(a.model_bytes, b.model_bytes);
  EXPECT_LE(a.used_bytes, o.max_bytes);
  EXPECT_GT(a.used_bytes, o.max_bytes * 8 / 10);
  EXPECT_TRUE(mentions(a.warnings, "sample of " + std::to_string(a.used_bytes)));
  o.seed = 1;
  EXPECT_NE(train_tokenizer(feed(documents), o).used_bytes, a.used_bytes);
}

TEST_P(EveryTrainer, SymbolsKeepTheirMeaning) {
  auto o = options(500);
  o.control_symbols = {"<|user|>", "<|end|>"};
  o.user_symbols = {"\n", "→→"};
  const auto t = Tokenizer::from_bytes(train_tokenizer(feed(sentences(300)), o).model_bytes);
  ASSERT_TRUE(t.id_of("<|user|>").has_value());
  EXPECT_EQ(t.piece_type(*t.id_of("<|user|>")), PieceType::kControl);
  // Spelled out in text a control piece is only text: nobody can forge a turn of a conversation.
  const auto ids = t.encode("<|user|>");
  EXPECT_GT(ids.size(), 1u);
  EXPECT_EQ(t.decode(ids), "<|user|>");
  EXPECT_EQ(t.decode(std::vector<std::int32_t>{*t.id_of("<|user|>")}), "");
  EXPECT_EQ(t.encode("\n"), std::vector<std::int32_t>{*t.id_of("\n")});
  EXPECT_EQ(t.encode("a→→b\n\n").size(), 5u);
  EXPECT_EQ(t.decode(t.encode("a →→ b\n\n▁")), "a →→ b\n\n▁");
}

TEST_P(EveryTrainer, DigitsAreSingle) {
  std::vector<std::string> documents;
  for (int i = 0; i < 500; ++i)
    documents.push_back("2024 2024 year " + std::to_string(i));
  auto o = options(400);
  const auto single = Tokenizer::from_bytes(train_tokenizer(feed(documents), o).model_bytes);
  EXPECT_EQ(single.encode("2024").size(), 4u);
  o.split_digits = false;
  const auto joined = Tokenizer::from_bytes(train_tokenizer(feed(documents), o).model_bytes);
  EXPECT_LT(joined.encode("2024").size(), 4u);
}

TEST(Trainer_Options, SpecialIdsCanMove) {
  auto o = train_options(TokenizerModel::kBpe, 400);
  o.unk_id = 3;
  o.bos_id = -1;
  o.eos_id = 0;
  o.pad_id = 399;
  const auto t = Tokenizer::from_bytes(train_tokenizer(feed(sentences(300)), o).model_bytes);
  EXPECT_EQ(t.info().unk_id, 3);
  EXPECT_EQ(t.info().bos_id, -1);
  EXPECT_EQ(t.info().eos_id, 0);
  EXPECT_EQ(t.info().pad_id, 399);
}

TEST(Trainer_Refuses, BadOptions) {
  const auto run = [](const std::function<void(TokenizerTrainOptions&)>& change) {
    auto o = train_options(TokenizerModel::kBpe, 400);
    change(o);
    train_tokenizer(feed(sentences(100)), o);
  };
  expect_error(kBad, {"vocab_size", "260", "got 260"},
               [&] { run([](auto& o) { o.vocab_size = 260; }); });
  expect_error(kBad, {"vocab_size"}, [&] { run([](auto& o) { o.vocab_size = -5; }); });
  expect_error(kBad, {"2^20"}, [&] { run([](auto& o) { o.vocab_size = 1 << 21; }); });
  expect_error(kBad, {"pad_id: the same as eos_id, 2"},
               [&] { run([](auto& o) { o.pad_id = 2; }); });
  expect_error(kBad, {"eos_id", "got -1"}, [&] { run([](auto& o) { o.eos_id = -1; }); });
  expect_error(kBad, {"pad_id", "got 400"}, [&] { run([](auto& o) { o.pad_id = 400; }); });
  expect_error(kBad, {"bos_id: the same as unk_id"}, [&] { run([](auto& o) { o.bos_id = 0; }); });
  expect_error(kBad, {"character_coverage"},
               [&] { run([](auto& o) { o.character_coverage = 0; }); });
  expect_error(kBad, {"max_piece_chars"}, [&] { run([](auto& o) { o.max_piece_chars = 0; }); });
  expect_error(kBad, {"max_bytes"}, [&] { run([](auto& o) { o.max_bytes = 0; }); });
  const auto symbol = [&](std::vector<std::string> control, std::vector<std::string> user) {
    run([&](auto& o) {
      o.control_symbols = control;
      o.user_symbols = user;
    });
  };
  expect_error(kBad, {"control_symbols", "two characters"}, [&] { symbol({"中"}, {}); });
  expect_error(kBad, {"control_symbols", "two characters"}, [&] { symbol({""}, {}); });
  expect_error(kBad, {"user_symbols", "one character"}, [&] { symbol({}, {""}); });
  expect_error(kBad, {"no spaces"}, [&] { symbol({"<a b>"}, {}); });
  expect_error(kBad, {"no spaces"}, [&] { symbol({}, {"▁x"}); });
  expect_error(kBad, {"UTF-8"}, [&] { symbol({"\xFFxx"}, {}); });
  expect_error(kBad, {"given twice"}, [&] { symbol({"<x>"}, {"<x>"}); });
  expect_error(kBad, {"given twice"}, [&] { symbol({"</s>"}, {}); });
  expect_error(kBad, {"256 bytes"}, [&] { symbol({}, {std::string(300, 'x')}); });
  expect_error(kBad, {"prefixes"}, [&] {
    std::vector<std::string> nested;
    for (std::size_t i = 1; i < 70; ++i)
      nested.push_back(std::string(i, 'z'));
    symbol({}, nested);
  });
}

TEST(Trainer_Quiet, NothingIsPrinted) {
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  train_tokenizer(feed(sentences(100)), train_options(TokenizerModel::kUnigram, 8192));
  EXPECT_THROW(Tokenizer::from_bytes("garbage"), Error);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace kda::text
