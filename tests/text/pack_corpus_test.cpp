#include "text/pack_corpus.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "io/io_test_support.h"
#include "io/manifest.h"
#include "text/shard.h"
#include "text/tokenizer_fixture.h"

namespace kda::text {
namespace {

using test::expect_error;
using test::small_tokenizer;
using test::TempFolder;

std::filesystem::path corpus(const TempFolder& folder, std::size_t count = 200) {
  std::string text;
  for (const auto& s : test::sentences(count, 17))
    text += s + "\n\n";
  test::put(folder / "c.txt", text);
  return folder / "c.txt";
}

TEST(PackCorpus_Documents, AreWholeAndEndInEos) {
  const TempFolder folder;
  const Tokenizer& t = small_tokenizer();
  PackCorpusOptions options;
  options.shard_tokens = 500;
  options.held_out_share = 0.2;
  const auto result = pack_corpus({corpus(folder)}, t, folder / "out", options);
  EXPECT_FALSE(result.cancelled);
  EXPECT_EQ(result.train_documents + result.held_out_documents, 200u);
  EXPECT_NEAR(static_cast<double>(result.held_out_documents), 40, 20);

  std::vector<std::string> texts;
  for (const char* part : {"train", "heldout"}) {
    const auto data = TokenDataset::open({folder / "out" / part});
    EXPECT_EQ(data.tokenizer_sha256(), t.info().sha256);
    EXPECT_EQ(data.eos_id(), static_cast<std::uint32_t>(t.eos_id()));
    for (const auto& shard : data.shards()) {
      EXPECT_TRUE(shard.verify().empty());
      for (std::uint64_t d = 0; d < shard.info().documents; ++d) {
        const auto ids = shard.document(d);
        EXPECT_EQ(ids.back(), t.eos_id());
        texts.push_back(t.decode(ids));
      }
    }
  }
  EXPECT_GT(TokenDataset::open({folder / "out/train"}).shards().size(), 3u);
  auto expected = test::sentences(200, 17);
  std::sort(texts.begin(), texts.end());
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(texts, expected);

  const auto manifest = io::read_manifest(folder / "out");
  EXPECT_EQ(manifest.kind, "token-shards");
  EXPECT_EQ(manifest.info["documents"], 200);
  EXPECT_TRUE(io::verify_manifest(folder / "out", manifest, io::VerifyLevel::kHashes).empty());
  EXPECT_EQ(test::get(folder / "out/tokenizer.model"), t.model_bytes());
}

TEST(PackCorpus_SameInput, SameFiles) {
  const TempFolder folder;
  const auto file = corpus(folder);
  pack_corpus({file}, small_tokenizer(), folder / "a", {});
  pack_corpus({file}, small_tokenizer(), folder / "b", {});
  EXPECT_EQ(test::get(folder / "a/train/00000.kdatok"), test::get(folder / "b/train/00000.kdatok"));
  EXPECT_EQ(test::get(folder / "a/manifest.json"), test::get(folder / "b/manifest.json"));
}

TEST(PackCorpus_HeldOut, ADocumentKeepsItsSide) {
  const TempFolder folder;
  const Tokenizer& t = small_tokenizer();
  PackCorpusOptions options;
  options.held_out_share = 0.3;
  pack_corpus({corpus(folder, 100)}, t, folder / "a", options);
  pack_corpus({corpus(folder, 200)}, t, folder / "b", options);
  const auto texts = [&](const std::filesystem::path& path) {
    const auto data = TokenDataset::open({path});
    std::vector<std::string> list;
    for (std::uint64_t d = 0; d < data.shards()[0].info().documents; ++d) {
      list.push_back(t.decode(data.shards()[0].document(d)));
    }
    return list;
  };
  const auto more = texts(folder / "b/heldout");
  for (const auto& text : texts(folder / "a/heldout")) {
    EXPECT_NE(std::find(more.begin(), more.end(), text), more.end());
  }
}

TEST(PackCorpus_Bos, IsPutFirst) {
  const TempFolder folder;
  PackCorpusOptions options;
  options.add_bos = true;
  pack_corpus({corpus(folder, 3)}, small_tokenizer(), folder / "out", options);
  const auto shard = ShardReader::open(folder / "out/train/00000.kdatok");
  EXPECT_EQ(shard.document(1).front(), small_tokenizer().info().bos_id);
}

TEST(PackCorpus_Cancelled, LeavesNothing) {
  const TempFolder folder;
  PackCorpusOptions options;
  options.shard_tokens = 100;
  const auto result =
      pack_corpus({corpus(folder)}, small_tokenizer(), folder / "out", options,
                  [](const PackCorpusProgress& p) { return p.corpus.documents < 50; });
  EXPECT_TRUE(result.cancelled);
  EXPECT_EQ(result.train_documents, 50u);
  EXPECT_TRUE(std::filesystem::is_empty(folder / "out"));
}

TEST(PackCorpus_BadDocument, LeavesNothing) {
  const TempFolder folder;
  test::put(folder / "bad.txt", "fine\n\nbad \xFF\n");
  expect_error(ErrorCode::kIo, {"bad.txt", "line 3"},
               [&] { pack_corpus({folder / "bad.txt"}, small_tokenizer(), folder / "out", {}); });
  EXPECT_TRUE(std::filesystem::is_empty(folder / "out"));
}

TEST(PackCorpus_Unfinished, IsReplacedFinishedIsKept) {
  const TempFolder folder;
  const auto file = corpus(folder, 20);
  std::filesystem::create_directories(folder / "out/train");
  test::put(folder / "out/train/00007.kdatok", "left by a killed run");
  test::put(folder / "out/train/.00000.kdatok.kda-tmp-1-0", "half");
  test::put(folder / "out/notes.txt", "mine");
  pack_corpus({file}, small_tokenizer(), folder / "out", {});
  EXPECT_EQ(TokenDataset::open({folder / "out/train"}).num_documents(), 20u);
  EXPECT_EQ(test::get(folder / "out/notes.txt"), "mine");
  expect_error(ErrorCode::kInvalidArgument, {"already holds finished shards"},
               [&] { pack_corpus({file}, small_tokenizer(), folder / "out", {}); });
}

TEST(PackCorpus_Refuses, BadOptions) {
  const TempFolder folder;
  const auto file = corpus(folder, 5);
  const Tokenizer& t = small_tokenizer();
  PackCorpusOptions options;
  options.held_out_share = 0.6;
  expect_error(ErrorCode::kInvalidArgument, {"held_out_share"},
               [&] { pack_corpus({file}, t, folder / "o", options); });
  options = {};
  options.shard_tokens = 0;
  expect_error(ErrorCode::kInvalidArgument, {"shard_tokens"},
               [&] { pack_corpus({file}, t, folder / "o", options); });
  test::put(folder / "empty.txt", "\n\n");
  expect_error(ErrorCode::kInvalidArgument, {"at least one document", "empty.txt"},
               [&] { pack_corpus({folder / "empty.txt"}, t, folder / "o", {}); });
  auto without_bos = test::train_options(TokenizerModel::kBpe);
  without_bos.bos_id = -1;
  const auto other = Tokenizer::from_bytes(
      train_tokenizer(test::feed(test::sentences(100)), without_bos).model_bytes);
  options = {};
  options.add_bos = true;
  expect_error(ErrorCode::kInvalidArgument, {"BOS"},
               [&] { pack_corpus({file}, other, folder / "o", options); });
  test::put(folder / "file", "x");
  expect_error(ErrorCode::kIo, {"cannot create"},
               [&] { pack_corpus({file}, t, folder / "file/out", {}); });
}

TEST(PackCorpus_HeldOutFiles, AreTheHeldOutDocuments) {
  const TempFolder folder;
  test::put(folder / "held.txt", "One held-out sentence.\n\nAnother one.\n");
  PackCorpusOptions options;
  options.held_out_files = {folder / "held.txt"};
  const auto result = pack_corpus({corpus(folder, 20)}, small_tokenizer(), folder / "out", options);
  EXPECT_EQ(result.train_documents, 20u);
  EXPECT_EQ(result.held_out_documents, 2u);
  EXPECT_EQ(result.corpus.documents, 22u);
  const auto data = TokenDataset::open({folder / "out/heldout"});
  EXPECT_EQ(small_tokenizer().decode(data.shards().front().document(0)), "One held-out sentence.");

  options.held_out_share = 0.1;
  expect_error(ErrorCode::kInvalidArgument, {"held_out_share: expected 0"}, [&] {
    pack_corpus({folder / "held.txt"}, small_tokenizer(), folder / "out2", options);
  });
}

}  // namespace
}  // namespace kda::text
