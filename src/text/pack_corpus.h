/// From text files to a folder of token shards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "text/corpus_reader.h"
#include "text/tokenizer.h"

namespace kda::text {

struct PackCorpusOptions {
  CorpusOptions corpus;
  bool add_bos = false;  ///< put BOS before each document; needs a tokenizer that has one
  /// Share of documents set aside for evaluation, in [0, 0.5]. A document is chosen by the hash of
  /// its text, so it stays on its side when other documents come and go.
  double held_out_share = 0;
  /// Files whose documents are the held-out ones; then `held_out_share` must be 0.
  std::vector<std::filesystem::path> held_out_files;
  std::uint64_t shard_tokens = std::uint64_t{1} << 26;  ///< a shard is closed when it has that many
};

struct PackCorpusProgress {
  CorpusStats corpus;
  std::uint64_t train_documents = 0;
  std::uint64_t train_tokens = 0;
  std::uint64_t held_out_documents = 0;
  std::uint64_t held_out_tokens = 0;
  std::uint64_t shards = 0;
  bool cancelled = false;
};

/// Encodes each document, appends EOS and writes `out/train/00000.kdatok` …,
/// `out/heldout/00000.kdatok` …, `out/tokenizer.model` and, last, `out/manifest.json` (kind
/// "token-shards"). `keep_going` is called after every document; a false result removes what was
/// written and returns with `cancelled`. Shards of an unfinished earlier run are replaced; a folder
/// with a manifest is refused. Errors: Error(kInvalidArgument) for the folder, options, a tokenizer
/// without EOS, or a corpus without documents; Error(kIo) from files.
PackCorpusProgress pack_corpus(
    const std::vector<std::filesystem::path>& files, const Tokenizer& tokenizer,
    const std::filesystem::path& out, const PackCorpusOptions& options,
    const std::function<bool(const PackCorpusProgress&)>& keep_going = {});

}  // namespace kda::text
