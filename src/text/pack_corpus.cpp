#include "text/pack_corpus.h"

#include <cstring>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "io/atomic_file.h"
#include "io/escape.h"
#include "io/manifest.h"
#include "io/number_text.h"
#include "kda/error.h"
#include "text/shard.h"

namespace kda::text {
namespace {

constexpr const char* kTrainFolder = "train";
constexpr const char* kHeldOutFolder = "heldout";
constexpr const char* kTokenizerName = "tokenizer.model";

/// Writes numbered shards into one folder, opening the next when one is full.
class ShardSequence {
 public:
  ShardSequence(std::filesystem::path out, std::string folder, const Tokenizer& tokenizer,
                std::uint64_t shard_tokens)
      : out_(std::move(out)),
        folder_(std::move(folder)),
        tokenizer_(tokenizer),
        shard_tokens_(shard_tokens) {}

  void add(std::span<const std::int32_t> ids, std::uint64_t text_bytes) {
    if (writer_ == nullptr) {
      std::filesystem::create_directories(out_ / folder_);
      std::string number = std::to_string(names_.size());
      number.insert(0, number.size() < 5 ? 5 - number.size() : 0, '0');
      names_.push_back(folder_ + "/" + number + std::string(kShardExtension));
      writer_ = std::make_unique<ShardWriter>(
          out_ / names_.back(), static_cast<std::uint32_t>(tokenizer_.vocab_size()),
          static_cast<std::uint32_t>(tokenizer_.eos_id()), tokenizer_.info().sha256);
    }
    writer_->add_document(ids, text_bytes);
    if (writer_->tokens() >= shard_tokens_) close();
  }

  void close() {
    if (writer_ == nullptr) return;
    writer_->commit();
    writer_.reset();
  }

  const std::vector<std::string>& names() const { return names_; }

 private:
  std::filesystem::path out_;
  std::string folder_;
  const Tokenizer& tokenizer_;
  std::uint64_t shard_tokens_;
  std::vector<std::string> names_;
  std::unique_ptr<ShardWriter> writer_;
};

/// Removes shards and unfinished files that an interrupted run has left. Nothing else is touched.
void remove_leftovers(const std::filesystem::path& out) {
  for (const char* name : {kTrainFolder, kHeldOutFolder}) {
    const auto folder = out / name;
    std::error_code error;
    if (!std::filesystem::is_directory(folder, error)) continue;
    io::remove_temporary_files(folder);
    std::vector<std::filesystem::path> shards;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      if (entry.path().extension() == kShardExtension) shards.push_back(entry.path());
    }
    for (const auto& shard : shards)
      std::filesystem::remove(shard, error);
    std::filesystem::remove(folder, error);  // only if nothing else is inside
  }
  std::error_code error;
  std::filesystem::remove(out / kTokenizerName, error);
}

void check(const Tokenizer& tokenizer, const std::filesystem::path& out,
           const PackCorpusOptions& options) {
  const auto refuse = [](const std::string& text) {
    throw Error(ErrorCode::kInvalidArgument, text);
  };
  if (tokenizer.eos_id() < 0) refuse("tokenizer: expected one with an EOS piece");
  if (options.add_bos && tokenizer.info().bos_id < 0) refuse("add_bos: the tokenizer has no BOS");
  if (!(options.held_out_share >= 0 && options.held_out_share <= 0.5)) {
    refuse("held_out_share: expected a number in [0, 0.5], got " +
           io::number_text(options.held_out_share));
  }
  if (options.held_out_share > 0 && !options.held_out_files.empty()) {
    refuse("held_out_share: expected 0 beside held_out_files, got " +
           io::number_text(options.held_out_share));
  }
  if (options.shard_tokens == 0) refuse("shard_tokens: expected more than 0");
  std::error_code error;
  if (std::filesystem::exists(out / io::kManifestName, error)) {
    refuse("out: " + io::escaped(out.string()) +
           " already holds finished shards; remove it or choose another folder");
  }
}

constexpr double kAll = 1;  // above every place

CorpusStats sum_of(CorpusStats a, const CorpusStats& b) {
  a.documents += b.documents;
  a.bytes += b.bytes;
  a.skipped_empty += b.skipped_empty;
  a.replaced_bytes += b.replaced_bytes;
  return a;
}

/// Uniform in [0, 1), fixed by the text.
double place_of(std::string_view text) {
  const auto digest = io::sha256(text);
  std::uint64_t head = 0;
  std::memcpy(&head, digest.data(), sizeof(head));
  return static_cast<double>(head >> 11) * 0x1.0p-53;
}

}  // namespace

PackCorpusProgress pack_corpus(const std::vector<std::filesystem::path>& files,
                               const Tokenizer& tokenizer, const std::filesystem::path& out,
                               const PackCorpusOptions& options,
                               const std::function<bool(const PackCorpusProgress&)>& keep_going) {
  check(tokenizer, out, options);
  std::error_code error;
  std::filesystem::create_directories(out, error);
  if (error) {
    throw Error(ErrorCode::kIo,
                "cannot create " + io::escaped(out.string()) + ": " + error.message());
  }
  remove_leftovers(out);

  PackCorpusProgress progress;
  try {
    ShardSequence train(out, kTrainFolder, tokenizer, options.shard_tokens);
    ShardSequence held_out(out, kHeldOutFolder, tokenizer, options.shard_tokens);
    std::vector<std::int32_t> ids;
    const auto pack = [&](const std::vector<std::filesystem::path>& sources,
                          double held_out_share) {
      const CorpusStats before = progress.corpus;
      const CorpusStats read =
          read_corpus(sources, options.corpus, [&](const CorpusDocument& document) {
            ids.clear();
            if (options.add_bos) ids.push_back(tokenizer.info().bos_id);
            const auto text_ids = tokenizer.encode(document.text);
            ids.insert(ids.end(), text_ids.begin(), text_ids.end());
            ids.push_back(tokenizer.eos_id());
            if (place_of(document.text) < held_out_share) {
              held_out.add(ids, document.text.size());
              ++progress.held_out_documents;
              progress.held_out_tokens += ids.size();
            } else {
              train.add(ids, document.text.size());
              ++progress.train_documents;
              progress.train_tokens += ids.size();
            }
            ++progress.corpus.documents;
            progress.corpus.bytes += document.text.size();
            progress.shards = train.names().size() + held_out.names().size();
            progress.cancelled = keep_going && !keep_going(progress);
            return !progress.cancelled;
          });
      progress.corpus = sum_of(before, read);
    };
    pack(files, options.held_out_share);
    if (!progress.cancelled) pack(options.held_out_files, kAll);
    if (!progress.cancelled) {
      if (progress.train_documents == 0) {
        throw Error(ErrorCode::kInvalidArgument,
                    "files: expected at least one document, got none in " +
                        (files.empty() ? "no file" : io::escaped(files.front().string())) +
                        (files.size() > 1 ? " and " + std::to_string(files.size() - 1) + " more"
                                          : std::string()));
      }
      train.close();
      held_out.close();
      io::write_file_atomic(out / kTokenizerName, tokenizer.model_bytes());
      std::vector<std::string> names = train.names();
      names.insert(names.end(), held_out.names().begin(), held_out.names().end());
      names.emplace_back(kTokenizerName);
      io::write_manifest(out, "token-shards", names,
                         {{"tokenizer_sha256", io::to_hex(tokenizer.info().sha256)},
                          {"documents", progress.corpus.documents},
                          {"text_bytes", progress.corpus.bytes},
                          {"skipped_empty", progress.corpus.skipped_empty},
                          {"replaced_bytes", progress.corpus.replaced_bytes},
                          {"train_documents", progress.train_documents},
                          {"train_tokens", progress.train_tokens},
                          {"held_out_documents", progress.held_out_documents},
                          {"held_out_tokens", progress.held_out_tokens},
                          {"add_bos", options.add_bos}});
    }
  } catch (...) {
    remove_leftovers(out);
    throw;
  }
  if (progress.cancelled) remove_leftovers(out);
  return progress;
}

}  // namespace kda::text
