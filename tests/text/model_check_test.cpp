#include "text/model_check.h"

#include <gtest/gtest.h>
#include <sentencepiece/sentencepiece_model.pb.h>

#include <cmath>
#include <cstring>

#include "io/io_test_support.h"
#include "text/tokenizer.h"

namespace kda::text {
namespace {

using test::expect_error;
using Piece = sentencepiece::ModelProto::SentencePiece;

void add(sentencepiece::ModelProto& model, const std::string& text, Piece::Type type,
         float score = 0) {
  auto* piece = model.add_pieces();
  piece->set_piece(text);
  piece->set_type(type);
  piece->set_score(score);
}

sentencepiece::ModelProto small_model() {
  sentencepiece::ModelProto model;
  add(model, "<unk>", Piece::UNKNOWN);
  add(model, "<s>", Piece::CONTROL);
  add(model, "</s>", Piece::CONTROL);
  add(model, "a", Piece::NORMAL, -1);
  model.mutable_trainer_spec()->set_model_type(sentencepiece::TrainerSpec::UNIGRAM);
  return model;
}

void expect_refused(const sentencepiece::ModelProto& model, const std::string& part) {
  expect_error(ErrorCode::kIo, {"m.model", "not a sound SentencePiece model", part},
               [&] { Tokenizer::from_bytes(model.SerializeAsString(), "m.model"); });
}

TEST(ModelCheck_Small, Loads) {
  const auto t = Tokenizer::from_bytes(small_model().SerializeAsString());
  EXPECT_EQ(t.vocab_size(), 4);
  EXPECT_EQ(t.info().pad_id, -1);
  EXPECT_FALSE(t.info().lossless);
}

TEST(ModelCheck_Pieces, EachFaultIsNamed) {
  sentencepiece::ModelProto model;
  expect_refused(model, "no pieces");
  model = small_model();
  add(model, "", Piece::NORMAL);
  expect_refused(model, "piece 4 \"\" has 0 bytes");
  model = small_model();
  add(model, std::string(5000, 'x'), Piece::NORMAL);
  expect_refused(model, "has 5000 bytes");
  model = small_model();
  add(model, "\xFF", Piece::NORMAL);
  expect_refused(model, "is not UTF-8");
  model = small_model();
  add(model, std::string("a\0b", 3), Piece::NORMAL);
  expect_refused(model, "contains NUL");
  model = small_model();
  add(model, "b", Piece::NORMAL, std::nanf(""));
  expect_refused(model, "not finite");
  model = small_model();
  add(model, "a", Piece::NORMAL);
  expect_refused(model, "already defined");
  model = small_model();
  add(model, "<unk2>", Piece::UNKNOWN);
  expect_refused(model, "unk is already defined");
  model = small_model();
  add(model, "<0x41>", Piece::BYTE);
  expect_refused(model, "byte_fallback");
  model.mutable_trainer_spec()->set_byte_fallback(true);
  expect_refused(model, "256 byte pieces");
  model = small_model();
  model.mutable_trainer_spec()->set_unk_surface("\xFF");
  expect_refused(model, "unk_surface");
  model = small_model();
  model.mutable_pieces(0)->set_type(Piece::NORMAL);
  expect_refused(model, "unk is not defined");
}

TEST(ModelCheck_UserSymbols, LongPrefixChainIsRefused) {
  sentencepiece::ModelProto model = small_model();
  for (int i = 2; i <= 66; ++i)
    add(model, std::string(static_cast<std::size_t>(i), 'b'), Piece::USER_DEFINED);
  expect_refused(model, "prefixes of each other");
  model.mutable_pieces()->DeleteSubrange(4, 1);
  const auto t = Tokenizer::from_bytes(model.SerializeAsString());
  EXPECT_EQ(t.encode(std::string(66, 'b')).size(), 2u);  // the dummy prefix and one symbol
}

TEST(LongestPrefixChain, Counts) {
  EXPECT_EQ(longest_prefix_chain({}), 0u);
  EXPECT_EQ(longest_prefix_chain({"b", "a"}), 1u);
  EXPECT_EQ(longest_prefix_chain({"ab", "a", "abc", "b", "ac"}), 3u);
}

/// A character map: trie of `units` (as many as given, filled with zero to a multiple of 256).
std::string charsmap(std::vector<std::uint32_t> units, const std::string& strings) {
  units.resize((units.size() + 255) / 256 * 256);
  const auto bytes = static_cast<std::uint32_t>(units.size() * 4);
  std::string blob(4 + bytes, '\0');
  std::memcpy(blob.data(), &bytes, 4);
  std::memcpy(blob.data() + 4, units.data(), bytes);
  return blob + strings;
}

constexpr std::uint32_t unit(std::uint32_t offset, std::uint32_t label, bool leaf = false) {
  return (offset << 10) | (leaf ? 0x100u : 0u) | label;
}

TEST(Charsmap_Genuine, IsAccepted) {
  for (const char* name : {"test_model.model", "test_ja_model.model"}) {
    const auto path = std::filesystem::path(KDA_SENTENCEPIECE_DIR) / name;
    sentencepiece::ModelProto model;
    ASSERT_TRUE(model.ParseFromString(test::get(path)));
    ASSERT_FALSE(model.normalizer_spec().precompiled_charsmap().empty());
    EXPECT_EQ(charsmap_fault(model.normalizer_spec().precompiled_charsmap()), "");
  }
}

TEST(Charsmap_Shape, IsChecked) {
  const std::string strings("x\0", 2);
  EXPECT_NE(charsmap_fault("abc"), "");
  EXPECT_NE(charsmap_fault(std::string(9u << 20, '\0')).find("8 MiB"), std::string::npos);
  std::string blob = charsmap({unit(0, 0)}, strings);
  EXPECT_EQ(charsmap_fault(blob), "");
  EXPECT_NE(charsmap_fault(blob.substr(0, blob.size() - 2)), "");  // no strings
  EXPECT_NE(charsmap_fault(blob + "x").find("end in NUL"), std::string::npos);
  EXPECT_NE(charsmap_fault(charsmap({0}, std::string("\xFF\0", 2))).find("UTF-8"),
            std::string::npos);
  blob[0] = 1;
  EXPECT_NE(charsmap_fault(blob).find("trie of"), std::string::npos);
}

TEST(Charsmap_Trie, LeavingTheArrayIsFound) {
  const std::string strings("x\0", 2);
  EXPECT_NE(charsmap_fault(charsmap({unit(256, 0)}, strings)).find("leaves"), std::string::npos);
  // Root state 0, child 'a' at 0x61 whose own children would lie at 0x61 ^ 0x1000.
  std::vector<std::uint32_t> units(256);
  units[0x61] = unit(0x1000, 0x61);
  EXPECT_NE(charsmap_fault(charsmap(units, strings)).find("leaves"), std::string::npos);
  units[0x61] = unit(0x0FF, 0x61) | 0x200u;  // the extended form of offsets: 0xFF << 8
  EXPECT_NE(charsmap_fault(charsmap(units, strings)).find("leaves"), std::string::npos);
}

TEST(Charsmap_Trie, CycleIsFound) {
  // 'a' leads back to the state it came from: text "aaaa…" would never leave, and a leaf there
  // would give one match per character.
  std::vector<std::uint32_t> units(256);
  units[0x61] = unit(0x61, 0x61, true);
  EXPECT_NE(charsmap_fault(charsmap(units, std::string("x\0", 2))).find("cycle"),
            std::string::npos);
}

TEST(Charsmap_Trie, DeepMatchesAreFound) {
  // A chain of n states, each with a leaf: block i has its children at 256·i.
  const auto chain = [](std::uint32_t n) {
    std::vector<std::uint32_t> units(256 * (n + 1));
    units[0] = unit(0, 0);
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::uint32_t position = 256 * i + 0x61;
      units[position] = unit(position ^ (256 * (i + 1)), 0x61, true);
    }
    return charsmap(units, std::string("x\0", 2));
  };
  EXPECT_EQ(charsmap_fault(chain(32)), "");
  EXPECT_NE(charsmap_fault(chain(33)).find("32 rules"), std::string::npos);
  EXPECT_NE(charsmap_fault(chain(300)).find("32 rules"), std::string::npos);
}

TEST(Charsmap_SharedState, IsVisitedOnceWithItsDepth) {
  // 'a' and 'b' lead to one state with 32 more leaves: 33 from either.
  std::vector<std::uint32_t> units(256 * 34);
  units[0x61] = unit(0x61 ^ 256, 0x61, false);
  units[0x62] = unit(0x62 ^ 256, 0x62, true);
  for (std::uint32_t i = 1; i <= 32; ++i) {
    const std::uint32_t position = 256 * i + 0x63;
    units[position] = unit(position ^ (256 * (i + 1)), 0x63, true);
  }
  EXPECT_NE(charsmap_fault(charsmap(units, std::string("x\0", 2))).find("32 rules"),
            std::string::npos);
  units[0x62] = unit(0x62 ^ 256, 0x62, false);
  EXPECT_EQ(charsmap_fault(charsmap(units, std::string("x\0", 2))), "");
}

TEST(ModelCheck_HostileCharsmap, IsRefusedOnLoad) {
  sentencepiece::ModelProto model = small_model();
  model.mutable_normalizer_spec()->set_precompiled_charsmap("abc");
  expect_refused(model, "character map");
  model = small_model();
  model.mutable_denormalizer_spec()->set_precompiled_charsmap("abc");
  expect_refused(model, "character map");
}

}  // namespace
}  // namespace kda::text
