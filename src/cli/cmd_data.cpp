#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/app.h"
#include "cli/console.h"
#include "cli/python_tool.h"
#include "cli/table.h"
#include "io/escape.h"
#include "io/manifest.h"
#include "io/number_text.h"
#include "io/sha256.h"
#include "kda/error.h"
#include "text/pack_corpus.h"
#include "text/shard.h"
#include "text/tokenizer.h"
#include "train/dataset.h"
#include "train/signals.h"
#include "train/units.h"

namespace kda::cli {
namespace fs = std::filesystem;
namespace {

constexpr const char* kCorpusModule = "kda.corpus";
constexpr const char* kCorpusManifest = "MANIFEST.json";

std::string count(std::uint64_t value) { return train::short_count(static_cast<double>(value)); }
std::string size(std::uint64_t value) { return train::short_bytes(static_cast<double>(value)); }

struct PackCommand {
  std::string data;
  std::string tokenizer;
  std::string out;
  std::optional<double> heldout_share;
};

constexpr double kHeldoutShare = 0.01;

int run_pack(const PackCommand& command) {
  const train::SignalScope signals;
  const train::DataFiles files = train::find_data(command.data);
  if (!files.packed.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--data: " + command.data + " is packed already");
  }
  if (fs::exists(fs::path(command.out) / kCorpusManifest)) {
    throw Error(ErrorCode::kInvalidArgument,
                "--out: " + command.out + " holds a corpus; expected a folder of its own");
  }
  const text::Tokenizer tokenizer = text::Tokenizer::load(command.tokenizer);
  std::vector<fs::path> sources = files.train;
  text::PackCorpusOptions options;
  options.add_bos = tokenizer.info().bos_id >= 0;
  if (files.heldout.empty()) {
    options.held_out_share = command.heldout_share.value_or(kHeldoutShare);
  } else if (command.heldout_share.has_value()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--heldout-share: expected none, since the data has its own held-out file " +
                    files.heldout.front().string() + ", got " +
                    io::number_text(*command.heldout_share));
  } else {
    options.held_out_files = files.heldout;
  }
  ConsoleReporter reporter("data pack");
  train::ProgressRecord progress;
  progress.phase = "packing";
  progress.bytes = true;
  for (const auto* list : {&sources, &options.held_out_files}) {
    for (const fs::path& file : *list)
      progress.total += static_cast<double>(fs::file_size(file));
  }
  std::uint64_t calls = 0;
  const text::PackCorpusProgress result = text::pack_corpus(
      sources, tokenizer, command.out, options, [&](const text::PackCorpusProgress& now) {
        if (++calls % 256 == 0) {
          progress.done = static_cast<double>(now.corpus.bytes);
          reporter.progress(progress);
        }
        return train::stop_signal() == 0;
      });
  if (result.cancelled) train::poll_stop();
  reporter.note(command.out + ": " + count(result.train_documents) + " documents, " +
                count(result.train_tokens) + " tokens to train on; " +
                count(result.held_out_documents) + " documents, " + count(result.held_out_tokens) +
                " tokens held out; tokenizer " + io::to_hex(tokenizer.info().sha256).substr(0, 16));
  return kDone;
}

void print_shard(const text::ShardReader& shard, const text::Tokenizer* tokenizer,
                 std::int64_t show) {
  const text::ShardInfo& info = shard.info();
  std::printf(
      "%s\n  %llu documents, %llu tokens (u%u), vocabulary %u, EOS %u, %s of text\n"
      "  tokenizer sha256 %s\n",
      shard.what().c_str(), static_cast<unsigned long long>(info.documents),
      static_cast<unsigned long long>(info.tokens), info.bytes_per_token * 8, info.vocab_size,
      info.eos_id, size(info.text_bytes).c_str(), io::to_hex(info.tokenizer_sha256).c_str());
  if (tokenizer == nullptr) return;
  if (tokenizer->info().sha256 != info.tokenizer_sha256) {
    throw Error(ErrorCode::kInvalidArgument,
                "--tokenizer: its sha256 " + io::to_hex(tokenizer->info().sha256).substr(0, 16) +
                    " is not the shard's " + io::to_hex(info.tokenizer_sha256).substr(0, 16));
  }
  const std::uint64_t documents = std::min(info.documents, static_cast<std::uint64_t>(show));
  for (std::uint64_t d = 0; d < documents; ++d) {
    const std::vector<std::int32_t> ids = shard.document(d);
    std::printf("  document %llu, %zu tokens: %s\n", static_cast<unsigned long long>(d), ids.size(),
                io::escaped(tokenizer->decode(ids), 240).c_str());
  }
}

int inspect_packed(const fs::path& folder, const std::string& tokenizer_path, std::int64_t show) {
  const io::Manifest manifest = io::read_manifest(folder);
  std::printf("packed folder %s\n", folder.c_str());
  for (const auto& item : manifest.info.items()) {
    std::printf("  %-18s %s\n", item.key().c_str(), item.value().dump().c_str());
  }
  const auto faults = io::verify_manifest(folder, manifest, io::VerifyLevel::kHashes);
  for (const std::string& fault : faults)
    print_error("data inspect", fault);
  const text::Tokenizer tokenizer = text::Tokenizer::load(
      tokenizer_path.empty() ? folder / "tokenizer.model" : fs::path(tokenizer_path));
  for (const io::ManifestEntry& entry : manifest.files) {
    const fs::path path = folder / entry.name;
    if (path.extension() == text::kShardExtension) {
      print_shard(text::ShardReader::open(path), &tokenizer, show);
    }
  }
  std::printf("%s\n", faults.empty() ? "all files agree with the manifest" : "BROKEN");
  return faults.empty() ? kDone : kFailed;
}

int run_inspect(const std::string& path, const std::string& tokenizer_path, std::int64_t show) {
  if (fs::exists(fs::path(path) / kCorpusManifest)) {
    exec_python_module(kCorpusModule, {"inspect", path}, "kda data");
  }
  if (fs::is_directory(path)) {
    const train::DataFiles files = train::find_data(path);
    if (!files.packed.empty()) return inspect_packed(path, tokenizer_path, show);
    for (const fs::path& file : files.train) {
      std::printf("train    %s  %s\n", file.c_str(), size(fs::file_size(file)).c_str());
    }
    for (const fs::path& file : files.heldout) {
      std::printf("held out %s  %s\n", file.c_str(), size(fs::file_size(file)).c_str());
    }
    return kDone;
  }
  if (fs::path(path).extension() != text::kShardExtension) {
    throw Error(ErrorCode::kIo, (fs::exists(path) ? "expected a folder or a .kdatok file, got "
                                                  : "no such file or folder: ") +
                                    path);
  }
  const text::ShardReader shard = text::ShardReader::open(path);
  if (tokenizer_path.empty()) {
    print_shard(shard, nullptr, show);
  } else {
    const text::Tokenizer tokenizer = text::Tokenizer::load(tokenizer_path);
    print_shard(shard, &tokenizer, show);
  }
  const std::vector<std::string> faults = shard.verify();
  for (const std::string& fault : faults)
    print_error("data inspect", fault);
  std::printf("%s\n", faults.empty() ? "payload hash and ids are right" : "BROKEN");
  return faults.empty() ? kDone : kFailed;
}

}  // namespace

void add_data(CLI::App& app) {
  CLI::App* data = add_verb(app, "data", "Build, pack and inspect text corpora");
  data->require_subcommand(1);

  const std::pair<const char*, const char*> corpus_verbs[] = {
      {"build", "Build a corpus folder from Debian packages or your own text"},
      {"verify", "Check sizes and sha256 of a corpus folder against its manifest"},
      {"floors", "Score systems that do not translate on an evaluation set"},
  };
  for (const auto& [name, what] : corpus_verbs) {
    const std::string verb = name;
    CLI::App* command =
        add_verb(*data, verb, std::string(what) + " (options: kda data " + verb + " --help)");
    command->set_help_flag();  // --help, like all else, goes to the Python tool
    command->prefix_command();
    on_run(command, [command, verb]() -> int {
      std::vector<std::string> arguments{verb};
      for (const std::string& word : command->remaining())
        arguments.push_back(word);
      exec_python_module(kCorpusModule, arguments, "kda data");
    });
  }

  CLI::App* pack =
      add_verb(*data, "pack", "Tokenize text once, into a folder of token shards",
               "  kda data pack --data my.txt --tokenizer spm.model --out data/packed\n"
               "  kda train --data data/packed --steps 800 --out runs/a");
  auto p = std::make_shared<PackCommand>();
  pack->add_option("--data", p->data, "Text, JSONL, or a folder with pretrain*.txt")
      ->type_name("PATH")
      ->required();
  pack->add_option("--tokenizer", p->tokenizer, "Tokenizer file")->type_name("FILE")->required();
  pack->add_option("--out", p->out, "Folder to write")->type_name("DIR")->required();
  pack->add_option("--heldout-share", p->heldout_share,
                   "Share of the documents to hold out, when the data has no held-out file [0.01]")
      ->type_name("X")
      ->check(CLI::Range(0.0, 0.5));
  on_run(pack, [p] { return run_pack(*p); });

  CLI::App* inspect =
      add_verb(*data, "inspect", "What a corpus folder, packed folder or token shard holds",
               "  kda data inspect data/tiny\n"
               "  kda data inspect data/packed --show 3");
  auto path = std::make_shared<std::string>();
  auto tokenizer = std::make_shared<std::string>();
  auto show = std::make_shared<std::int64_t>(2);
  inspect->add_option("path", *path, "Folder or .kdatok file")->type_name("PATH")->required();
  inspect->add_option("--tokenizer", *tokenizer, "Tokenizer to decode documents with")
      ->type_name("FILE");
  inspect->add_option("--show", *show, "Documents to decode per shard")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  on_run(inspect, [path, tokenizer, show] { return run_inspect(*path, *tokenizer, *show); });
}

}  // namespace kda::cli
