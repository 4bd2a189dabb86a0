#include "train/dataset.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>

#include "kda/error.h"
#include "text/pack_corpus.h"
#include "text/tokenizer_trainer.h"
#include "train/fixture.h"
#include "train/signals.h"

namespace kda::train {
namespace {

namespace fs = std::filesystem;
using testing::corpus_folder;
using testing::error_text;
using testing::RecordingReporter;
using testing::ScratchFolder;
using testing::tokenizer;

TEST(Dataset, FindData_CorpusFolder) {
  testing::tokenizer_file();
  const DataFiles files = find_data(corpus_folder());
  ASSERT_EQ(files.train.size(), 2u);
  EXPECT_EQ(files.train[0].filename(), "pretrain.en.txt");
  EXPECT_EQ(files.train[1].filename(), "pretrain.zh.txt");
  ASSERT_EQ(files.heldout.size(), 1u);
  EXPECT_TRUE(files.packed.empty());
}

TEST(Dataset, FindData_SaysWhatIsThere) {
  ScratchFolder folder;
  testing::write_text(folder / "notes.md", "x");
  EXPECT_NE(error_text(ErrorCode::kIo, [&] { find_data(folder.path()); }).find("notes.md"),
            std::string::npos);
  EXPECT_NE(error_text(ErrorCode::kIo, [&] { find_data(folder / "missing"); }).find("no such"),
            std::string::npos);
  EXPECT_NE(error_text(ErrorCode::kIo, [&] { find_data(folder / "notes.md"); }).find(".jsonl"),
            std::string::npos);
}

TEST(Dataset, Prepare_TokenizesOnceAndAgainWhenTheTextChanges) {
  ScratchFolder folder;
  fs::copy(corpus_folder(), folder / "data", fs::copy_options::recursive);
  fs::remove_all(folder / "data/cache");
  const PrepareOptions options{folder / "cache", 0};
  RecordingReporter first;
  const PreparedData data = prepare_data(find_data(folder / "data"), options, tokenizer(), first);
  EXPECT_EQ(data.train->num_documents(), 160u);
  EXPECT_EQ(data.heldout->num_documents(), 30u);
  EXPECT_EQ(first.notes.size(), 2u);  // one line per tokenized set

  RecordingReporter second;
  const PreparedData again = prepare_data(find_data(folder / "data"), options, tokenizer(), second);
  EXPECT_TRUE(second.notes.empty());
  EXPECT_EQ(again.train->fingerprint(), data.train->fingerprint());

  std::ofstream(folder / "data/pretrain.en.txt", std::ios::app) << "\n\none more document\n";
  RecordingReporter third;
  const PreparedData changed =
      prepare_data(find_data(folder / "data"), options, tokenizer(), third);
  EXPECT_EQ(third.notes.size(), 1u);
  EXPECT_EQ(changed.train->num_documents(), 161u);
}

TEST(Dataset, Prepare_DocumentsBeginWithBosAndEndWithEos) {
  ScratchFolder folder;
  RecordingReporter reporter;
  const PreparedData data =
      prepare_data(find_data(corpus_folder()), {folder / "cache", 0}, tokenizer(), reporter);
  for (std::uint64_t d : {0u, 7u, 159u}) {
    std::vector<std::int64_t> ids(data.train->document_tokens(d));
    data.train->copy(d, 0, ids);
    EXPECT_EQ(ids.front(), tokenizer().info().bos_id);
    EXPECT_EQ(ids.back(), tokenizer().info().eos_id);
  }
}

TEST(Dataset, Prepare_DamagedCacheIsMadeAgain) {
  ScratchFolder folder;
  const PrepareOptions options{folder / "cache", 0};
  RecordingReporter reporter;
  prepare_data(find_data(corpus_folder()), options, tokenizer(), reporter);
  for (const auto& entry : fs::recursive_directory_iterator(folder / "cache")) {
    if (entry.path().extension() == ".kdatok") fs::resize_file(entry.path(), 40);
  }
  const PreparedData data =
      prepare_data(find_data(corpus_folder()), options, tokenizer(), reporter);
  EXPECT_EQ(data.train->num_documents(), 160u);
  ASSERT_EQ(reporter.warnings.size(), 2u);
  EXPECT_NE(reporter.warnings[0].find("damaged"), std::string::npos);
}

/// Changes one byte in the middle of the first shard.
void flip_a_bit(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".kdatok") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(entry.file_size() / 2);
    file.seekg(middle);
    const int byte = file.get();
    file.seekp(middle);
    file.put(static_cast<char>(byte ^ 1));
    return;
  }
  FAIL() << "no shard in " << folder;
}

TEST(Dataset, Prepare_AFlippedBitIsNoticed) {
  ScratchFolder folder;
  const PrepareOptions options{folder / "cache", 0};
  RecordingReporter reporter;
  const DataFiles files = find_data(corpus_folder() / "pretrain.en.txt");
  prepare_data(files, options, tokenizer(), reporter);
  flip_a_bit(folder / "cache");
  prepare_data(files, options, tokenizer(), reporter);
  ASSERT_EQ(reporter.warnings.size(), 1u);
  EXPECT_NE(reporter.warnings[0].find("sha256"), std::string::npos) << reporter.warnings[0];

  text::pack_corpus(files.train, tokenizer(), folder / "packed", {});
  flip_a_bit(folder / "packed");
  const std::string text = error_text(ErrorCode::kIo, [&] {
    prepare_data(find_data(folder / "packed"), {}, tokenizer(), reporter);
  });
  EXPECT_NE(text.find("damaged"), std::string::npos) << text;
}

TEST(Dataset, Prepare_SeveralAtOnceMakeTheShardsOnce) {
  ScratchFolder folder;
  const DataFiles files = find_data(corpus_folder());
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    RecordingReporter reporter;
    int code = 1;
    try {
      code = prepare_data(files, {folder / "cache", 0}, tokenizer(), reporter)
                         .train->num_documents() == 160u
                 ? 0
                 : 2;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    ::_exit(code);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

TEST(Dataset, Prepare_HoldsOutAShareOfASingleFile) {
  ScratchFolder folder;
  RecordingReporter reporter;
  const PreparedData data = prepare_data(find_data(corpus_folder() / "pretrain.en.txt"),
                                         {folder / "cache", 0.25}, tokenizer(), reporter);
  ASSERT_TRUE(data.heldout);
  EXPECT_EQ(data.train->num_documents() + data.heldout->num_documents(), 80u);
  EXPECT_GT(data.heldout->num_documents(), 8u);
  EXPECT_LT(data.heldout->num_documents(), 35u);
  const PreparedData none = prepare_data(find_data(corpus_folder() / "pretrain.en.txt"),
                                         {folder / "cache", 0}, tokenizer(), reporter);
  EXPECT_FALSE(none.heldout);
  EXPECT_EQ(none.train->num_documents(), 80u);
}

TEST(Dataset, Prepare_AnotherTokenizersShardsAreRefusedNamingBoth) {
  ScratchFolder folder;
  text::pack_corpus({corpus_folder() / "pretrain.en.txt"}, tokenizer(), folder / "packed", {});
  text::TokenizerTrainOptions options;
  options.vocab_size = 300;
  const text::Tokenizer other =
      text::Tokenizer::from_bytes(text::train_tokenizer(
                                      [](const std::function<void(std::string_view)>& sink) {
                                        for (const std::string& text : testing::documents(40))
                                          sink(text);
                                      },
                                      options)
                                      .model_bytes);
  RecordingReporter reporter;
  const std::string text = error_text(ErrorCode::kInvalidArgument, [&] {
    prepare_data(find_data(folder / "packed"), {}, other, reporter);
  });
  EXPECT_NE(text.find(std::to_string(tokenizer().vocab_size())), std::string::npos) << text;
  EXPECT_NE(text.find(std::to_string(other.vocab_size())), std::string::npos) << text;
}

TEST(Dataset, Prepare_StopRequestLeavesNoShard) {
  ScratchFolder folder;
  RecordingReporter reporter;
  request_stop(SIGTERM);
  EXPECT_THROW(
      prepare_data(find_data(corpus_folder()), {folder / "cache", 0}, tokenizer(), reporter),
      Interrupted);
  clear_stop();
  for (const auto& entry : fs::recursive_directory_iterator(folder / "cache")) {
    EXPECT_FALSE(entry.is_regular_file()) << entry.path();
  }
}

}  // namespace
}  // namespace kda::train
