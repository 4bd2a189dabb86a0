#include "text/shard.h"

#include <gtest/gtest.h>

#include <cstring>

#include "text/text_test_support.h"

namespace kda::text {
namespace {

using test::expect_error;
using test::get;
using test::TempFolder;
using test::write_shard;

std::vector<std::int64_t> copy(const TokenDataset& data, std::uint64_t document) {
  std::vector<std::int64_t> out(data.document_tokens(document));
  data.copy(document, 0, out);
  return out;
}

TEST(Shard_RoundTrip, NarrowAndWideTokens) {
  const TempFolder folder;
  for (const std::uint32_t vocab : {65536u, 65537u, 163840u}) {
    const auto last = static_cast<std::int32_t>(vocab - 1);
    const test::Documents documents = {{5, last, 2}, {}, {0}, {2, 2, 2, 2}};
    write_shard(folder / "s", documents, vocab);
    const auto shard = ShardReader::open(folder / "s");
    EXPECT_EQ(shard.info().bytes_per_token, vocab <= 65536 ? 2u : 4u);
    EXPECT_EQ(shard.info().tokens, 8u);
    EXPECT_EQ(shard.info().documents, 4u);
    EXPECT_EQ(shard.info().text_bytes, 80u);
    EXPECT_EQ(shard.info().eos_id, 2u);
    EXPECT_EQ(shard.info().tokenizer_sha256, io::sha256("tokenizer"));
    for (std::size_t i = 0; i < documents.size(); ++i)
      EXPECT_EQ(shard.document(i), documents[i]);
    EXPECT_TRUE(shard.verify().empty());
    EXPECT_EQ(std::filesystem::file_size(folder / "s") % 8, 0u);
  }
}

TEST(Shard_Empty, IsValid) {
  const TempFolder folder;
  write_shard(folder / "s", {});
  EXPECT_EQ(ShardReader::open(folder / "s").info().documents, 0u);
}

TEST(Shard_SameInput, SameBytes) {
  const TempFolder folder;
  write_shard(folder / "a", {{1, 2, 3}, {4, 2}});
  write_shard(folder / "b", {{1, 2, 3}, {4, 2}});
  EXPECT_EQ(get(folder / "a"), get(folder / "b"));
}

TEST(ShardWriter_Refuses, BadIdsAndBadVocabulary) {
  const TempFolder folder;
  {
    ShardWriter writer(folder / "s", 10, 2, {});
    const std::vector<std::int32_t> high = {10};
    const std::vector<std::int32_t> low = {-1};
    expect_error(ErrorCode::kInvalidArgument, {"[0, 10)", "got 10"},
                 [&] { writer.add_document(high, 1); });
    expect_error(ErrorCode::kInvalidArgument, {"got -1"}, [&] { writer.add_document(low, 1); });
    EXPECT_EQ(writer.tokens(), 0u);
    EXPECT_EQ(writer.documents(), 0u);
  }
  expect_error(ErrorCode::kInvalidArgument, {"eos_id 10"},
               [&] { ShardWriter writer(folder / "s", 10, 10, {}); });
  expect_error(ErrorCode::kInvalidArgument, {"vocab_size 0"},
               [&] { ShardWriter writer(folder / "s", 0, 0, {}); });
  EXPECT_TRUE(folder.names().empty());
}

TEST(ShardReader_Ranges, AreChecked) {
  const TempFolder folder;
  write_shard(folder / "s", {{5, 6, 2}, {7}});
  const auto shard = ShardReader::open(folder / "s");
  std::vector<std::int64_t> two(2);
  shard.copy(0, 1, two);
  EXPECT_EQ(two, (std::vector<std::int64_t>{6, 2}));
  shard.copy(0, 3, {});
  expect_error(ErrorCode::kInvalidArgument, {"2 tokens from 2 on", "has 3"},
               [&] { shard.copy(0, 2, two); });
  expect_error(ErrorCode::kInvalidArgument, {"has 3"}, [&] { shard.copy(0, ~0ull, two); });
  expect_error(ErrorCode::kInvalidArgument, {"document 2 of 2"}, [&] { shard.document(2); });
  EXPECT_EQ(shard.document_begin(1), 3u);
}

/// A valid shard of 9 tokens and 2 documents with `size` bytes at `at` replaced.
template <class T>
std::string changed(const std::string& file, std::size_t at, T value) {
  std::string copy = file;
  std::memcpy(copy.data() + at, &value, sizeof(value));
  return copy;
}

TEST(ShardReader_Hostile, EachIsRefusedWithAReason) {
  const TempFolder folder;
  write_shard(folder / "s", {{5, 6, 7, 8, 2}, {9, 9, 9, 2}}, 100);
  const std::string good = get(folder / "s");
  const std::size_t offsets = good.size() - 24;
  const std::pair<std::string, const char*> cases[] = {
      {"", "0 bytes, at least 128"},
      {good.substr(0, 127), "at least 128"},
      {changed(good, 0, 'X'), "wrong magic"},
      {changed(good, 8, std::uint32_t{2}), "version 2"},
      {changed(good, 12, std::uint32_t{3}), "3 bytes per token"},
      {changed(good, 12, std::uint32_t{4}), "the header asks for"},
      {changed(good, 16, std::uint64_t{10}), "last offset is 9, 10 expected"},
      {changed(good, 16, std::uint64_t{13}), "the header asks for"},
      {changed(good, 16, ~std::uint64_t{0}), "counts larger than the file"},
      {changed(good, 16, std::uint64_t{1} << 63), "counts larger than the file"},
      {changed(good, 24, ~std::uint64_t{0}), "counts larger than the file"},
      {changed(good, 24, std::uint64_t{3}), "the header asks for"},
      {changed(good, 32, std::uint32_t{0}), "vocabulary of 0"},
      {changed(good, 32, ~std::uint32_t{0}), "vocabulary of 4294967295"},
      {changed(good, 36, std::uint32_t{100}), "EOS 100"},
      {changed(good, 120, std::uint8_t{1}), "reserved"},
      {changed(good, offsets, std::uint64_t{1}), "offset of document 0 is 1"},
      {changed(good, offsets + 8, std::uint64_t{10}), "offset of document 2 is 9 after 10"},
      {changed(good, offsets + 8, ~std::uint64_t{0}), "offset of document 2"},
      {changed(good, offsets + 16, std::uint64_t{8}), "last offset is 8"},
      {good + "x", "the header asks for"},
  };
  for (const auto& [bytes, part] : cases) {
    SCOPED_TRACE(part);
    expect_error(ErrorCode::kIo, {"test", part},
                 [&, b = bytes] { ShardReader::parse(test::bytes_of(b), "test"); });
  }
  for (std::size_t n = 0; n < good.size(); ++n) {
    const std::string cut = good.substr(0, n);
    EXPECT_THROW(ShardReader::parse(test::bytes_of(cut), "test"), Error) << n;
  }
}

TEST(ShardReader_IdOutsideVocabulary, NeverReachesTheModel) {
  const TempFolder folder;
  write_shard(folder / "s", {{5, 6, 7}}, 100);
  const std::string bad = changed(get(folder / "s"), 128 + 2, std::uint16_t{100});
  const auto shard = ShardReader::parse(test::bytes_of(bad), "test");
  expect_error(ErrorCode::kIo, {"token 1 is 100", "vocabulary of 100"}, [&] { shard.document(0); });
  const auto faults = shard.verify();
  ASSERT_EQ(faults.size(), 2u);
  EXPECT_NE(faults[0].find("sha256"), std::string::npos);
  EXPECT_NE(faults[1].find("token 1"), std::string::npos);
}

TEST(TokenDataset_Shards, AreOneList) {
  const TempFolder folder;
  write_shard(folder / "b.kdatok", {{3, 2}});
  write_shard(folder / "a.kdatok", {{1, 2}, {}, {2}});
  write_shard(folder / "c.kdatok", {});
  test::put(folder / "notes.txt", "not a shard");
  const auto data = TokenDataset::open({folder.path()});
  EXPECT_EQ(data.shards().size(), 3u);
  EXPECT_EQ(data.num_documents(), 4u);
  EXPECT_EQ(data.num_tokens(), 5u);
  EXPECT_EQ(data.text_bytes(), 50u);
  EXPECT_EQ(data.vocab_size(), 100u);
  EXPECT_EQ(data.eos_id(), 2u);
  EXPECT_EQ(data.tokenizer_sha256(), io::sha256("tokenizer"));
  EXPECT_EQ(copy(data, 0), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(copy(data, 1), std::vector<std::int64_t>{});
  EXPECT_EQ(copy(data, 3), (std::vector<std::int64_t>{3, 2}));
  expect_error(ErrorCode::kInvalidArgument, {"document 4 of 4"}, [&] { copy(data, 4); });
}

TEST(TokenDataset_Fingerprint, SeesContentAndOrder) {
  const TempFolder folder;
  write_shard(folder / "a", {{1, 2}});
  write_shard(folder / "b", {{3, 2}});
  const auto print = [&](const std::vector<std::filesystem::path>& paths) {
    return TokenDataset::open(paths).fingerprint();
  };
  EXPECT_EQ(print({folder / "a", folder / "b"}), print({folder / "a", folder / "b"}));
  EXPECT_NE(print({folder / "a", folder / "b"}), print({folder / "b", folder / "a"}));
  EXPECT_NE(print({folder / "a"}), print({folder / "b"}));
}

TEST(TokenDataset_Mixed, IsRefused) {
  const TempFolder folder;
  write_shard(folder / "a", {{1, 2}});
  write_shard(folder / "b", {{1, 2}}, 100, 2, "other");
  write_shard(folder / "c", {{1, 2}}, 101);
  write_shard(folder / "d", {{1, 2}}, 100, 3);
  for (const char* other : {"b", "c", "d"}) {
    expect_error(ErrorCode::kInvalidArgument, {other, "another tokenizer"}, [&] {
      TokenDataset::open({folder / "a", folder / other});
    });
  }
  expect_error(ErrorCode::kInvalidArgument, {"at least one"}, [] { TokenDataset::open({}); });
  const TempFolder empty;
  expect_error(ErrorCode::kIo, {"no *.kdatok"}, [&] { TokenDataset::open({empty.path()}); });
  expect_error(ErrorCode::kIo, {"No such file"}, [&] { TokenDataset::open({empty / "x"}); });
}

}  // namespace
}  // namespace kda::text
