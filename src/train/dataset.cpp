#include "train/dataset.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "io/manifest.h"
#include "io/number_text.h"
#include "io/sha256.h"
#include "kda/error.h"
#include "text/pack_corpus.h"
#include "text/pack_examples.h"
#include "train/signals.h"
#include "train/units.h"

namespace kda::train {
namespace fs = std::filesystem;
namespace {

constexpr const char* kTrainFolder = "train";
constexpr const char* kHeldOutFolder = "heldout";
constexpr const char* kPackedKind = "token-shards";

bool is_text(const fs::path& path) {
  return path.extension() == ".txt" || path.extension() == ".jsonl";
}

std::string short_hash(const io::Sha256Digest& digest) { return io::to_hex(digest).substr(0, 16); }

bool is_packed(const fs::path& folder) {
  return fs::exists(folder / io::kManifestName) && io::read_manifest(folder).kind == kPackedKind;
}

/// Name of the cache folder of some files: changes with their content and with everything that
/// decides how they are tokenized, `how` among it.
std::string cache_key(const std::vector<fs::path>& files, const text::Tokenizer& tokenizer,
                      const std::string& how) {
  io::Sha256 hash;
  hash.update("kda token cache 1\n" + io::to_hex(tokenizer.info().sha256) + "\n" + how + "\n");
  for (const fs::path& file : files) {
    hash.update(file.filename().string() + " " + io::to_hex(io::sha256_file(file)) + "\n");
  }
  return files.front().stem().string() + "-" + short_hash(hash.finish());
}

/// Shows how far a pass over files is, at most every 256 calls.
class TokenizingProgress {
 public:
  TokenizingProgress(const std::vector<fs::path>& files, Reporter& reporter)
      : reporter_(reporter), start_(std::chrono::steady_clock::now()) {
    record_.phase = "tokenizing " + files.front().filename().string();
    if (files.size() > 1) record_.phase += " and " + std::to_string(files.size() - 1) + " more";
    record_.bytes = true;
    for (const fs::path& file : files)
      record_.total += static_cast<double>(fs::file_size(file));
  }

  /// False when a stop was asked for.
  bool tell(std::uint64_t bytes) {
    if (++calls_ % 256 == 0) {
      record_.done = static_cast<double>(bytes);
      record_.seconds = seconds();
      reporter_.progress(record_);
    }
    return stop_signal() == 0;
  }

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  const std::string& phase() const { return record_.phase; }

 private:
  Reporter& reporter_;
  std::chrono::steady_clock::time_point start_;
  ProgressRecord record_;
  std::uint64_t calls_ = 0;
};

void tokenize(const std::vector<fs::path>& files, const fs::path& out,
              const text::Tokenizer& tokenizer, double share, Reporter& reporter) {
  TokenizingProgress progress(files, reporter);
  text::PackCorpusOptions options;
  options.add_bos = tokenizer.info().bos_id >= 0;
  options.held_out_share = share;
  const text::PackCorpusProgress result = text::pack_corpus(
      files, tokenizer, out, options,
      [&](const text::PackCorpusProgress& now) { return progress.tell(now.corpus.bytes); });
  if (result.cancelled) poll_stop();
  const std::uint64_t tokens = result.train_tokens + result.held_out_tokens;
  char text[96];
  std::snprintf(text, sizeof text, " tokens, %.2f bytes/token, %.1f s",
                static_cast<double>(result.corpus.bytes) / static_cast<double>(tokens),
                progress.seconds());
  reporter.note(progress.phase() + ": " +
                short_count(static_cast<double>(result.corpus.documents)) + " documents, " +
                short_count(static_cast<double>(tokens)) + text);
}

void tokenize_examples(const ExampleFiles& examples, const fs::path& out,
                       const text::Tokenizer& tokenizer, double share, Reporter& reporter) {
  TokenizingProgress progress(examples.files, reporter);
  const text::PackExamplesOptions options{examples.target, share};
  const text::PackExamplesProgress result = text::pack_examples(
      examples.files, tokenizer, out, options,
      [&](const text::PackExamplesProgress& now) { return progress.tell(now.bytes); });
  if (result.cancelled) poll_stop();
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, ", %.1f s", progress.seconds());
  std::string text = progress.phase() + ": " +
                     short_count(static_cast<double>(result.train_examples)) +
                     " examples to train on, " +
                     short_count(static_cast<double>(result.held_out_examples)) + " held out";
  if (result.skipped_empty > 0) {
    text += ", " + short_count(static_cast<double>(result.skipped_empty)) +
            " without an answer left out";
  }
  reporter.note(text + seconds);
}

/// Keeps other processes from making shards in a cache folder at the same time: each would remove
/// the other's files as leftovers.
class CacheLock {
 public:
  CacheLock(const fs::path& cache, Reporter& reporter)
      : fd_(::open(cache.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    bool told = false;
    // Other failures are those of file systems without locks.
    while (fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      if (!told) reporter.note("waiting for another process that tokenizes into " + cache.string());
      told = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      poll_stop();
    }
  }
  ~CacheLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;

 private:
  int fd_;
};

/// The first fault of a folder of shards, "" when it is sound. Hashing costs less than it did to
/// hash the text, and a flipped bit is another training set.
std::string fault_of(const fs::path& folder) {
  try {
    const auto faults =
        io::verify_manifest(folder, io::read_manifest(folder), io::VerifyLevel::kHashes);
    return faults.empty() ? std::string() : faults.front();
  } catch (const Error& error) {
    return error.what();
  }
}

/// The folder with the shards of `files`, which `make` fills when it does not exist or is damaged.
fs::path cached(const fs::path& cache, const std::string& key, Reporter& reporter,
                const std::function<void(const fs::path&)>& make) {
  const fs::path folder = cache / key;
  std::error_code status;
  fs::create_directories(cache, status);
  if (status) {
    throw Error(ErrorCode::kIo, "cannot create the token cache " + cache.string() + ": " +
                                    status.message() + " (choose another with --cache)");
  }
  const CacheLock lock(cache, reporter);
  if (fs::exists(folder / io::kManifestName)) {
    const std::string fault = fault_of(folder);
    if (fault.empty()) return folder;
    reporter.warn("token cache " + folder.string() + " is damaged and made again: " + fault);
    fs::remove_all(folder, status);
  }
  make(folder);
  return folder;
}

fs::path cached_text(const std::vector<fs::path>& files, const fs::path& cache,
                     const text::Tokenizer& tokenizer, double share, Reporter& reporter) {
  const std::string key = cache_key(files, tokenizer, io::number_text(share));
  return cached(cache, key, reporter, [&](const fs::path& folder) {
    tokenize(files, folder, tokenizer, share, reporter);
  });
}

std::shared_ptr<const text::TokenDataset> open_shards(const fs::path& folder,
                                                      const text::Tokenizer& tokenizer) {
  if (!fs::exists(folder)) return nullptr;
  auto data = std::make_shared<text::TokenDataset>(text::TokenDataset::open({folder}));
  if (data->tokenizer_sha256() != tokenizer.info().sha256) {
    throw Error(ErrorCode::kInvalidArgument,
                folder.string() + ": made with tokenizer " + short_hash(data->tokenizer_sha256()) +
                    " (vocabulary " + std::to_string(data->vocab_size()) +
                    "), but the run uses tokenizer " + short_hash(tokenizer.info().sha256) +
                    " (vocabulary " + std::to_string(tokenizer.vocab_size()) + ")");
  }
  return data;
}

}  // namespace

DataFiles find_data(const fs::path& data, const std::string& flag) {
  DataFiles files;
  files.flag = flag;
  if (!fs::exists(data)) {
    throw Error(ErrorCode::kIo, flag + ": no such file or folder: " + data.string());
  }
  if (!fs::is_directory(data)) {
    if (!is_text(data)) {
      throw Error(ErrorCode::kIo,
                  flag + ": expected a folder, a .txt or a .jsonl file, got " + data.string());
    }
    files.train.push_back(data);
    return files;
  }
  if (is_packed(data)) {
    files.packed = data;
    return files;
  }
  std::string seen;
  for (const auto& entry : fs::directory_iterator(data)) {
    const std::string name = entry.path().filename().string();
    const bool usable = entry.is_regular_file() && is_text(entry.path());
    if (usable && name.starts_with("pretrain")) {
      files.train.push_back(entry.path());
    } else if (usable && name.starts_with("heldout")) {
      // A corpus too small to hold documents out has an empty file.
      if (entry.file_size() > 0) files.heldout.push_back(entry.path());
    } else {
      seen += (seen.empty() ? "" : ", ") + name;
    }
  }
  if (files.train.empty()) {
    throw Error(ErrorCode::kIo, flag + ": " + data.string() +
                                    " has no pretrain*.txt or pretrain*.jsonl" +
                                    (seen.empty() ? " (it is empty)" : " (it has: " + seen + ")") +
                                    "; `kda data build` makes such a folder");
  }
  std::sort(files.train.begin(), files.train.end());
  std::sort(files.heldout.begin(), files.heldout.end());
  return files;
}

std::vector<fs::path> find_examples(const fs::path& data) {
  if (!fs::exists(data)) {
    throw Error(ErrorCode::kIo, "--data: no such file or folder: " + data.string());
  }
  if (!fs::is_directory(data)) {
    if (data.extension() == ".jsonl") return {data};
    throw Error(ErrorCode::kIo, "--data: expected a folder or a .jsonl file, got " + data.string());
  }
  std::vector<fs::path> files;
  std::string seen;
  for (const auto& entry : fs::directory_iterator(data)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && name.starts_with("sft") &&
        entry.path().extension() == ".jsonl") {
      files.push_back(entry.path());
    } else {
      seen += (seen.empty() ? "" : ", ") + name;
    }
  }
  if (files.empty()) {
    throw Error(ErrorCode::kIo, "--data: " + data.string() + " has no sft*.jsonl" +
                                    (seen.empty() ? " (it is empty)" : " (it has: " + seen + ")") +
                                    "; `kda data build` makes such a folder");
  }
  std::sort(files.begin(), files.end());
  return files;
}

PreparedData prepare_examples(const ExampleFiles& examples, const PrepareOptions& options,
                              const text::Tokenizer& tokenizer, Reporter& reporter) {
  const std::string how =
      "examples, prompts " + std::to_string(text::kPromptVersion) + ", target " +
      (examples.target ? std::string(text::name_of(*examples.target)) : std::string("-")) +
      ", share " + io::number_text(options.heldout_share);
  const std::string key = cache_key(examples.files, tokenizer, how);
  const fs::path folder = cached(options.cache, key, reporter, [&](const fs::path& made) {
    tokenize_examples(examples, made, tokenizer, options.heldout_share, reporter);
  });
  return {open_shards(folder / kTrainFolder, tokenizer),
          open_shards(folder / kHeldOutFolder, tokenizer)};
}

PreparedData prepare_data(const DataFiles& files, const PrepareOptions& options,
                          const text::Tokenizer& tokenizer, Reporter& reporter) {
  PreparedData data;
  if (!files.packed.empty()) {
    if (const std::string fault = fault_of(files.packed); !fault.empty()) {
      throw Error(ErrorCode::kIo,
                  files.flag + ": " + files.packed.string() + " is damaged: " + fault);
    }
    data.train = open_shards(files.packed / kTrainFolder, tokenizer);
    data.heldout = open_shards(files.packed / kHeldOutFolder, tokenizer);
    return data;
  }
  const double share = files.heldout.empty() ? options.heldout_share : 0.0;
  const fs::path folder = cached_text(files.train, options.cache, tokenizer, share, reporter);
  data.train = open_shards(folder / kTrainFolder, tokenizer);
  if (files.heldout.empty()) {
    data.heldout = open_shards(folder / kHeldOutFolder, tokenizer);
  } else {
    const fs::path held = cached_text(files.heldout, options.cache, tokenizer, 0.0, reporter);
    data.heldout = open_shards(held / kTrainFolder, tokenizer);
  }
  return data;
}

}  // namespace kda::train
