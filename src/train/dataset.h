/// From a data folder and a tokenizer to token shards, tokenizing at most once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/language.h"
#include "text/shard.h"
#include "text/tokenizer.h"
#include "train/report.h"

namespace kda::train {

/// What `--data` names.
struct DataFiles {
  /// A folder written by `kda data pack`, else empty.
  std::filesystem::path packed;
  std::string flag = "--data";                 ///< what the user calls it
  std::vector<std::filesystem::path> train;    ///< text or JSONL, sorted by name
  std::vector<std::filesystem::path> heldout;  ///< the same; may be empty
};

/// A text or JSONL file; a folder with pretrain*.txt or pretrain*.jsonl, and optionally
/// heldout*.txt or heldout*.jsonl; or a packed folder. Throws kIo saying what was found instead.
/// `flag` is what the user calls it.
DataFiles find_data(const std::filesystem::path& data, const std::string& flag = "--data");

struct PrepareOptions {
  std::filesystem::path cache;  ///< where token shards of text files are kept
  double heldout_share = 0;     ///< of the documents, when there is no held-out file
};

struct PreparedData {
  std::shared_ptr<const text::TokenDataset> train;
  std::shared_ptr<const text::TokenDataset> heldout;  ///< null: none
};

/// The JSONL files that `--data` of fine-tuning names: a file, or a folder's sft*.jsonl (of these
/// `kda data build` writes sft.train.jsonl). Sorted by name. Throws kIo saying what was found
/// instead.
std::vector<std::filesystem::path> find_examples(const std::filesystem::path& data);

struct ExampleFiles {
  std::vector<std::filesystem::path> files;
  std::optional<text::Language> target;  ///< of lines without a direction
};

/// Shards of prompts and answers (text/pack_examples.h), made once like those of text.
PreparedData prepare_examples(const ExampleFiles& files, const PrepareOptions& options,
                              const text::Tokenizer& tokenizer, Reporter& reporter);

/// Opens the data. Text files are tokenized into a folder of the cache whose name depends on their
/// content and on the tokenizer, unless it exists; every document becomes BOS (when the tokenizer
/// has one), its tokens, EOS. Polls for signals at every document (throws Interrupted, leaves
/// nothing half-made). Shards of another tokenizer are refused, naming both hashes.
PreparedData prepare_data(const DataFiles& files, const PrepareOptions& options,
                          const text::Tokenizer& tokenizer, Reporter& reporter);

}  // namespace kda::train
