#include <gtest/gtest.h>

#include "io/io_test_support.h"
#include "io/utf8.h"
#include "text/tokenizer.h"
#include "text/tokenizer_fixture.h"

namespace kda::text {
namespace {

using test::small_tokenizer;
using Ids = std::vector<std::int32_t>;

Ids bytes_as_ids(const Tokenizer& t, std::string_view bytes) {
  Ids ids;
  for (const char c : bytes) {
    constexpr char kDigits[] = "0123456789ABCDEF";
    const auto b = static_cast<unsigned char>(c);
    ids.push_back(*t.id_of(std::string("<0x") + kDigits[b >> 4] + kDigits[b & 15] + ">"));
  }
  return ids;
}

TEST(StreamDecoder_Pieces, AreValidAndAddUp) {
  std::mt19937 random(3);
  for (const auto model : {TokenizerModel::kBpe, TokenizerModel::kUnigram}) {
    const Tokenizer& t = small_tokenizer(model);
    StreamDecoder decoder(t);
    for (int i = 0; i < 500; ++i) {
      Ids ids;
      for (int n = 0; n < 15; ++n) {
        const unsigned range = random() % 3 ? 260 : static_cast<unsigned>(t.vocab_size());
        ids.push_back(static_cast<std::int32_t>(random() % range));
      }
      std::string joined;
      for (const auto id : ids) {
        const std::string piece = decoder.add(id);
        ASSERT_TRUE(io::is_utf8(piece));
        joined += piece;
      }
      joined += decoder.finish();
      ASSERT_EQ(joined, t.decode(ids));
    }
  }
}

TEST(StreamDecoder_Character, AppearsWithItsLastByte) {
  const Tokenizer& t = small_tokenizer();
  StreamDecoder decoder(t);
  const Ids ids = bytes_as_ids(t, "😀é");
  std::vector<std::string> pieces;
  for (const auto id : ids)
    pieces.push_back(decoder.add(id));
  EXPECT_EQ(pieces, (std::vector<std::string>{"", "", "", "😀", "", "é"}));
  EXPECT_EQ(decoder.finish(), "");
}

TEST(StreamDecoder_Broken, BytesBecomeReplacements) {
  const std::string r(io::kReplacementCharacter);
  const Tokenizer& t = small_tokenizer();
  StreamDecoder decoder(t);
  EXPECT_EQ(decoder.add(bytes_as_ids(t, "\xFF")[0]), r);
  EXPECT_EQ(decoder.add(bytes_as_ids(t, "\xE4")[0]), "");
  EXPECT_EQ(decoder.add(bytes_as_ids(t, "\xE4")[0]), r);  // the first one is lost, the second waits
  EXPECT_EQ(decoder.add(bytes_as_ids(t, "\xB8")[0]), "");
  EXPECT_EQ(decoder.finish(), r + r);
  EXPECT_EQ(decoder.finish(), "");
  // A control piece between the bytes cuts the character.
  EXPECT_EQ(decoder.add(bytes_as_ids(t, "\xE4")[0]), "");
  EXPECT_EQ(decoder.add(t.eos_id()), r);
}

TEST(StreamDecoder_Space, LeadingOneIsKeptByOurModels) {
  const Tokenizer& t = small_tokenizer();
  StreamDecoder decoder(t);
  std::string text;
  for (const auto id : t.encode(" the model"))
    text += decoder.add(id);
  EXPECT_EQ(text + decoder.finish(), " the model");
}

TEST(StreamDecoder_Foreign, DropsTheDummyPrefixOnceAndStartsAnew) {
  const auto t = Tokenizer::load(std::filesystem::path(KDA_SENTENCEPIECE_DIR) / "test_model.model");
  StreamDecoder decoder(t);
  for (int round = 0; round < 2; ++round) {
    std::string text;
    for (const auto id : t.encode("I saw a girl"))
      text += decoder.add(id);
    EXPECT_EQ(text + decoder.finish(), "I saw a girl");
  }
}

TEST(StreamDecoder_BadId, IsRefused) {
  StreamDecoder decoder(small_tokenizer());
  test::expect_error(ErrorCode::kInvalidArgument, {"got 99999"}, [&] { decoder.add(99999); });
}

}  // namespace
}  // namespace kda::text
