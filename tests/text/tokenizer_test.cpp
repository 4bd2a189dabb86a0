#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <sentencepiece/sentencepiece_processor.h>

#include <thread>

#include "io/io_test_support.h"
#include "io/utf8.h"
#include "text/tokenizer_fixture.h"

namespace kda::test {

std::string random_text(std::mt19937& random, std::size_t characters) {
  std::string text;
  for (std::size_t i = 0; i < characters; ++i) {
    switch (random() % 8) {
      case 0:
        text += " ";
        break;
      case 1:
        text += "\t\n\r "[random() % 4];
        break;
      case 2:
        io::append_utf8(text, static_cast<char32_t>(0x4E00 + random() % 2000));
        break;
      case 3:
        io::append_utf8(text, static_cast<char32_t>(0x2580 + random() % 16));  // around "▁"
        break;
      case 4: {
        const auto c = static_cast<char32_t>(random() % 0x110000);
        io::append_utf8(text, c >= 0xD800 && c < 0xE000 ? U' ' : c);
        break;
      }
      case 5:
        text += sentences(1, static_cast<unsigned>(random() % 97))[0];
        break;
      default:
        text.push_back(static_cast<char>(random() % 128));
    }
  }
  return text;
}

}  // namespace kda::test

namespace kda::text {
namespace {

using test::expect_error;
using test::small_tokenizer;
using test::TempFolder;
using Ids = std::vector<std::int32_t>;

std::filesystem::path foreign(const char* name) {
  return std::filesystem::path(KDA_SENTENCEPIECE_DIR) / name;
}

class EveryModel : public testing::TestWithParam<TokenizerModel> {
 protected:
  const Tokenizer& tokenizer() const { return small_tokenizer(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Tokenizer, EveryModel,
                         testing::Values(TokenizerModel::kBpe, TokenizerModel::kUnigram),
                         [](const auto& param) {
                           return param.param == TokenizerModel::kBpe ? "Bpe" : "Unigram";
                         });

TEST_P(EveryModel, RoundTripIsByteEqual) {
  const std::string cases[] = {
      "",
      " ",
      "，？！（１２３）ＡＢＣ　…﹏︰ŀ",
      "a  b\tc",
      "  leading and trailing  ",
      "\n\n line\r\nends\n",
      "▁ the mark ▁▁ itself",
      "</s> <s> <pad> <unk> <0x41>",
      "ﬁ é é ½ Ω Å",
      std::string("nul \0 inside", 12),
      "\xF4\x8F\xBF\xBF\xEF\xBF\xBD\xEF\xBF\xBE",
      "👩‍👩‍👧 family",
      "today 12345678901234567890",
  };
  for (const auto& text : cases) {
    const Ids ids = tokenizer().encode(text);
    EXPECT_EQ(tokenizer().decode(ids), text);
    for (const auto id : ids) {
      EXPECT_NE(tokenizer().piece_type(id), PieceType::kControl) << text;
      EXPECT_NE(tokenizer().piece_type(id), PieceType::kUnknown) << text;
    }
  }
}

TEST_P(EveryModel, RandomTextRoundTrips) {
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {
    const std::string text = test::random_text(random, 1 + random() % 60);
    ASSERT_EQ(tokenizer().decode(tokenizer().encode(text)), text);
  }
}

TEST_P(EveryModel, LongTextIsCutWithoutTrace) {
  std::string text;
  unsigned seed = 0;
  while (text.size() < (3u << 19)) {
    for (const auto& s : test::sentences(50, ++seed))
      text += s + (seed % 3 ? "\n" : "\n\n ");
  }
  const Ids ids = tokenizer().encode(text);
  EXPECT_EQ(tokenizer().decode(ids), text);
  // The library on the whole text at once.
  sentencepiece::SentencePieceProcessor whole;
  ASSERT_TRUE(whole.LoadFromSerializedProto(tokenizer().model_bytes()).ok());
  std::vector<int> expected;
  ASSERT_TRUE(whole.Encode(text, &expected).ok());
  EXPECT_EQ(ids, expected);
}

TEST_P(EveryModel, TokenBytesSumToTheText) {
  std::mt19937 random(6);
  for (int i = 0; i < 100; ++i) {
    const std::string text = test::random_text(random, 40);
    std::size_t bytes = 0;
    for (const auto id : tokenizer().encode(text)) {
      bytes += static_cast<std::size_t>(tokenizer().token_bytes()[static_cast<std::size_t>(id)]);
    }
    ASSERT_EQ(bytes, text.size());
  }
  EXPECT_EQ(tokenizer().token_bytes()[static_cast<std::size_t>(tokenizer().eos_id())], 0);
}

TEST_P(EveryModel, IdsEqualTheLibrarysOwn) {
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.LoadFromSerializedProto(tokenizer().model_bytes()).ok());
  for (const auto& text : test::sentences(50, 99)) {
    std::vector<int> expected;
    ASSERT_TRUE(library.Encode(text, &expected).ok());
    EXPECT_EQ(tokenizer().encode(text), expected);
  }
}

TEST_P(EveryModel, Info) {
  const TokenizerInfo& info = tokenizer().info();
  EXPECT_EQ(info.model_type, GetParam() == TokenizerModel::kBpe ? "bpe" : "unigram");
  EXPECT_EQ(info.unk_id, 0);
  EXPECT_EQ(info.bos_id, 1);
  EXPECT_EQ(info.eos_id, 2);
  EXPECT_EQ(info.pad_id, 3);
  EXPECT_EQ(info.normalizer, "identity");
  EXPECT_TRUE(info.byte_fallback);
  EXPECT_TRUE(info.lossless);
  EXPECT_TRUE(info.warnings.empty());
  EXPECT_EQ(info.sha256, io::sha256(tokenizer().model_bytes()));
}

TEST(Tokenizer_Threads, ShareOneModel) {
  const Tokenizer& t = small_tokenizer();
  const auto texts = test::sentences(100, 3);
  std::vector<Ids> expected;
  for (const auto& text : texts)
    expected.push_back(t.encode(text));
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (std::size_t n = 0; n < wrong.size(); ++n) {
    threads.emplace_back([&, n] {
      for (std::size_t i = 0; i < texts.size(); ++i) {
        wrong[n] += t.encode(texts[i]) != expected[i] || t.decode(expected[i]) != texts[i] ? 1 : 0;
      }
    });
  }
  for (auto& thread : threads)
    thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

TEST(Tokenizer_Pieces, BothWays) {
  const Tokenizer& t = small_tokenizer();
  for (std::int32_t id = 0; id < t.vocab_size(); ++id)
    EXPECT_EQ(t.id_of(t.piece(id)), id);
  EXPECT_EQ(t.id_of("no such piece"), std::nullopt);
  EXPECT_EQ(t.id_of("<unk>"), 0);
  EXPECT_EQ(t.piece_type(*t.id_of("<0x0A>")), PieceType::kByte);
  EXPECT_EQ(t.piece_type(2), PieceType::kControl);
  EXPECT_EQ(name_of(PieceType::kByte), "byte");
  for (const auto type : {PieceType::kNormal, PieceType::kUnknown, PieceType::kControl,
                          PieceType::kUserDefined, PieceType::kUnused}) {
    EXPECT_NE(name_of(type), "?");
  }
}

TEST(Tokenizer_Refuses, BadTextAndIds) {
  const Tokenizer& t = small_tokenizer();
  expect_error(ErrorCode::kInvalidArgument, {"byte 3 of 3"}, [&] { t.encode("ab\xFF"); });
  expect_error(ErrorCode::kInvalidArgument, {"got -1"}, [&] { t.decode(Ids{-1}); });
  expect_error(ErrorCode::kInvalidArgument, {"got 400"}, [&] { t.decode(Ids{400}); });
  expect_error(ErrorCode::kInvalidArgument, {"got 400"}, [&] { t.piece(400); });
  expect_error(ErrorCode::kInvalidArgument, {"got 400"}, [&] { t.piece_type(400); });
}

TEST(Tokenizer_Foreign, NfkcModelSaysSo) {
  const auto t = Tokenizer::load(foreign("test_model.model"));
  EXPECT_EQ(t.vocab_size(), 1000);
  EXPECT_EQ(t.info().model_type, "unigram");
  EXPECT_EQ(t.info().normalizer, "nfkc");
  EXPECT_FALSE(t.info().lossless);
  std::string all;
  for (const auto& w : t.info().warnings)
    all += w + "\n";
  EXPECT_NE(all.find("nfkc"), std::string::npos);
  EXPECT_NE(all.find("unknown token"), std::string::npos);
  EXPECT_NE(all.find("spaces are lost"), std::string::npos);
  // Its character map is applied: full-width becomes ASCII.
  EXPECT_EQ(t.decode(t.encode("ＡＢＣ  hello ")), "ABC hello");
}

TEST(Tokenizer_Foreign, DecodesAsTheLibraryDoes) {
  std::mt19937 random(8);
  for (const char* name : {"test_model.model", "test_ja_model.model"}) {
    const auto t = Tokenizer::load(foreign(name));
    sentencepiece::SentencePieceProcessor library;
    ASSERT_TRUE(library.LoadFromSerializedProto(t.model_bytes()).ok());
    for (int i = 0; i < 500; ++i) {
      Ids ids;
      for (int n = 0; n < 12; ++n) {
        ids.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(t.vocab_size())));
      }
      if (i % 4 == 0) ids[0] = *t.id_of("▁");
      if (i % 8 == 0) ids[1] = *t.id_of("▁");
      std::string expected;
      ASSERT_TRUE(library.Decode(ids, &expected).ok());
      ASSERT_EQ(t.decode(ids), expected);
    }
  }
}

TEST_P(EveryModel, DecodesAnyIdsAsTheLibraryDoes) {
  std::mt19937 random(9);
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.LoadFromSerializedProto(tokenizer().model_bytes()).ok());
  for (int i = 0; i < 2000; ++i) {
    Ids ids;
    for (int n = 0; n < 10; ++n) {
      // Mostly byte pieces: broken and whole characters.
      const unsigned range = random() % 4 ? 260 : static_cast<unsigned>(tokenizer().vocab_size());
      ids.push_back(static_cast<std::int32_t>(random() % range));
    }
    std::string expected;
    ASSERT_TRUE(library.Decode(ids, &expected).ok());
    ASSERT_EQ(tokenizer().decode(ids), expected);
    ASSERT_TRUE(io::is_utf8(expected));
  }
}

TEST(Tokenizer_Load, FileErrors) {
  const TempFolder folder;
  expect_error(ErrorCode::kIo, {"none.model", "No such file"},
               [&] { Tokenizer::load(folder / "none.model"); });
  const std::string good = small_tokenizer().model_bytes();
  test::put(folder / "t.model", good);
  EXPECT_EQ(Tokenizer::load(folder / "t.model").info().sha256, io::sha256(good));
  for (const std::string& bad : {std::string(), std::string("hello"), std::string(100, '\0'),
                                 std::string(100, '\xFF'), good.substr(0, good.size() / 2)}) {
    test::put(folder / "bad.model", bad);
    expect_error(ErrorCode::kIo, {"bad.model", "not a sound SentencePiece model"},
                 [&] { Tokenizer::load(folder / "bad.model"); });
  }
}

TEST(Tokenizer_Mutated, NeverCrashes) {
  // Random damage to genuine models: refused with one error, or loaded and usable.
  std::mt19937 random(4);
  int loaded = 0;
  for (int i = 0; i < 150; ++i) {
    std::string bytes =
        i % 2 ? small_tokenizer().model_bytes() : test::get(foreign("test_model.model"));
    for (int n = 0; n < 3; ++n)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    try {
      const auto t = Tokenizer::from_bytes(bytes);
      t.decode(t.encode(test::sentences(1, static_cast<unsigned>(i))[0]));
      ++loaded;
    } catch (const Error& e) {
      EXPECT_NE(e.code(), ErrorCode::kInternal);
    }
  }
  EXPECT_GT(loaded, 0);
}

}  // namespace
}  // namespace kda::text
