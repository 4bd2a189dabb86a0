#include "text/pack_examples.h"

#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "io/atomic_file.h"
#include "io/escape.h"
#include "io/json.h"
#include "io/manifest.h"
#include "io/mapped_file.h"
#include "io/number_text.h"
#include "io/sha256.h"
#include "io/utf8.h"
#include "kda/error.h"
#include "text/shard.h"

namespace kda::text {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTrainFolder = "train";
constexpr const char* kHeldOutFolder = "heldout";
constexpr const char* kShardName = "00000.kdatok";
constexpr const char* kTokenizerName = "tokenizer.model";
constexpr std::uint64_t kMaxLineBytes = 16u << 20;

[[noreturn]] void fail_line(const std::string& what, const std::string& reason) {
  throw Error(ErrorCode::kIo, what + ": " + reason);
}

/// The text under `key`; nothing when the key is absent or null.
std::optional<std::string> text_of(const io::SortedJson& json, const char* key,
                                   const std::string& what) {
  const auto at = json.find(key);
  if (at == json.end() || at->is_null()) return std::nullopt;
  if (!at->is_string()) fail_line(what, "\"" + std::string(key) + "\" is not a string");
  return at->get<std::string>();
}

std::string needed(const io::SortedJson& json, const char* key, const std::string& what) {
  auto text = text_of(json, key, what);
  if (!text) {
    fail_line(what, "no \"" + std::string(key) +
                        "\"; expected src, tgt, direction or instruction, input, output");
  }
  return std::move(*text);
}

ExampleText translation_of(const io::SortedJson& json, const std::string& what,
                           std::optional<Language> target) {
  const std::string source = needed(json, "src", what);
  const std::string translation = needed(json, "tgt", what);
  if (const auto name = text_of(json, "direction", what)) {
    const auto direction = direction_from(*name);
    if (!direction) {
      fail_line(what, "direction: expected en2zh or zh2en, got " + io::escaped(*name));
    }
    target = target_of(*direction);
  }
  if (!target) fail_line(what, "no \"direction\", and --target-lang is not given");
  // Both directions of a pair get one identity.
  const bool ordered = source < translation;
  return {translation_prompt(*target, source), single_line(translation),
          (ordered ? source : translation) + '\n' + (ordered ? translation : source)};
}

/// Uniform in [0, 1), fixed by the text.
double place_of(std::string_view text) {
  const auto digest = io::sha256(text);
  std::uint64_t head = 0;
  std::memcpy(&head, digest.data(), sizeof(head));
  return static_cast<double>(head >> 11) * 0x1.0p-53;
}

/// One shard of alternating prompts and answers, made when the first example comes.
class ExampleShard {
 public:
  ExampleShard(fs::path out, const char* folder, const Tokenizer& tokenizer)
      : out_(std::move(out)), folder_(folder), tokenizer_(tokenizer) {}

  void add(const EncodedExample& example, std::uint64_t prompt_bytes, std::uint64_t answer_bytes) {
    if (writer_ == nullptr) {
      fs::create_directories(out_ / folder_);
      writer_ = std::make_unique<ShardWriter>(
          out_ / name(), static_cast<std::uint32_t>(tokenizer_.vocab_size()),
          static_cast<std::uint32_t>(tokenizer_.eos_id()), tokenizer_.info().sha256);
    }
    const std::span ids(example.ids);
    writer_->add_document(ids.first(example.prompt_tokens), prompt_bytes);
    writer_->add_document(ids.subspan(example.prompt_tokens), answer_bytes);
  }

  std::string name() const { return std::string(folder_) + "/" + kShardName; }
  bool empty() const { return writer_ == nullptr; }
  void commit() {
    if (writer_ != nullptr) writer_->commit();
  }

 private:
  fs::path out_;
  const char* folder_;
  const Tokenizer& tokenizer_;
  std::unique_ptr<ShardWriter> writer_;
};

/// Removes what an interrupted call has left. Nothing else is touched.
void remove_parts(const fs::path& out) {
  std::error_code ignored;
  for (const char* folder : {kTrainFolder, kHeldOutFolder}) {
    if (fs::is_directory(out / folder, ignored)) io::remove_temporary_files(out / folder);
    fs::remove(out / folder / kShardName, ignored);
    fs::remove(out / folder, ignored);  // only if nothing else is inside
  }
  fs::remove(out / kTokenizerName, ignored);
}

void check_pack(const Tokenizer& tokenizer, const fs::path& out,
                const PackExamplesOptions& options) {
  const auto refuse = [](const std::string& text) {
    throw Error(ErrorCode::kInvalidArgument, text);
  };
  const TokenizerInfo& info = tokenizer.info();
  if (info.eos_id < 0) refuse("tokenizer: expected one with an EOS piece, got none");
  if (info.pad_id == info.eos_id || info.bos_id == info.eos_id) {
    refuse("tokenizer: expected EOS to be a piece of its own, got id " +
           std::to_string(info.eos_id) + " for " +
           (info.pad_id == info.eos_id ? "padding" : "BOS") +
           " too: a model cannot learn to stop by an id that also means something else");
  }
  if (!(options.held_out_share >= 0 && options.held_out_share <= 0.5)) {
    refuse("held_out_share: expected a number in [0, 0.5], got " +
           io::number_text(options.held_out_share));
  }
  std::error_code ignored;
  if (fs::exists(out / io::kManifestName, ignored)) {
    refuse("out: " + io::escaped(out.string()) +
           " already holds finished shards; remove it or choose another folder");
  }
}

/// Calls `visit(line, what)` for every line that is not blank; stops when it returns false.
template <class Visit>
void for_each_line(const fs::path& path, PackExamplesProgress& progress, const Visit& visit) {
  const io::MappedFile mapping(path);
  std::string_view text(reinterpret_cast<const char*>(mapping.bytes().data()),
                        mapping.bytes().size());
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  for (std::uint64_t number = 1; !text.empty(); ++number) {
    const auto end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    const std::size_t taken = end == std::string_view::npos ? text.size() : end + 1;
    text.remove_prefix(taken);
    progress.bytes += taken;
    if (line.find_first_not_of(" \t\r\f\v") == std::string_view::npos) continue;
    const std::string what = io::escaped(path.string()) + " line " + std::to_string(number);
    if (line.size() > kMaxLineBytes) fail_line(what, "longer than 16 MiB");
    if (const auto bad = io::find_invalid_utf8(line); bad != line.size()) {
      fail_line(what, "byte " + std::to_string(bad + 1) + " is not UTF-8");
    }
    ++progress.lines;
    if (!visit(line, what)) return;
  }
}

}  // namespace

ExampleText parse_example(std::string_view line, const std::string& what,
                          std::optional<Language> target) {
  const io::SortedJson json =
      io::parse_sorted_json(line, what, {.max_depth = 32, .max_bytes = line.size()});
  if (!json.is_object()) fail_line(what, "expected a JSON object");
  if (json.contains("src") || json.contains("tgt")) return translation_of(json, what, target);
  const std::string instruction = needed(json, "instruction", what);
  const std::string output = needed(json, "output", what);
  const std::string input = text_of(json, "input", what).value_or(std::string());
  const std::string prompt = instruction_prompt(instruction, input);
  return {prompt, output, prompt};
}

PackExamplesProgress pack_examples(
    const std::vector<fs::path>& files, const Tokenizer& tokenizer, const fs::path& out,
    const PackExamplesOptions& options,
    const std::function<bool(const PackExamplesProgress&)>& keep_going) {
  check_pack(tokenizer, out, options);
  std::error_code status;
  fs::create_directories(out, status);
  if (status) {
    throw Error(ErrorCode::kIo,
                "cannot create " + io::escaped(out.string()) + ": " + status.message());
  }
  remove_parts(out);
  PackExamplesProgress progress;
  try {
    ExampleShard train(out, kTrainFolder, tokenizer);
    ExampleShard held_out(out, kHeldOutFolder, tokenizer);
    for (const fs::path& file : files) {
      for_each_line(file, progress, [&](std::string_view line, const std::string& what) {
        const ExampleText example = parse_example(line, what, options.target);
        if (example.answer.find_first_not_of(" \t\r\n\f\v") == std::string::npos) {
          ++progress.skipped_empty;
        } else {
          const EncodedExample encoded = encode_example(tokenizer, example.prompt, example.answer);
          const bool held = place_of(example.identity) < options.held_out_share;
          (held ? held_out : train).add(encoded, example.prompt.size(), example.answer.size());
          ++(held ? progress.held_out_examples : progress.train_examples);
        }
        progress.cancelled = keep_going && !keep_going(progress);
        return !progress.cancelled;
      });
      if (progress.cancelled) break;
    }
    if (!progress.cancelled) {
      if (train.empty()) {
        throw Error(ErrorCode::kInvalidArgument,
                    "files: expected at least one example with an answer, got " +
                        std::to_string(progress.lines) + " lines without any in " +
                        (files.empty() ? "no file" : io::escaped(files.front().string())));
      }
      train.commit();
      held_out.commit();
      io::write_file_atomic(out / kTokenizerName, tokenizer.model_bytes());
      std::vector<std::string> names{train.name()};
      if (!held_out.empty()) names.push_back(held_out.name());
      names.emplace_back(kTokenizerName);
      io::write_manifest(out, "example-shards", names,
                         {{"tokenizer_sha256", io::to_hex(tokenizer.info().sha256)},
                          {"prompt_version", kPromptVersion},
                          {"train_examples", progress.train_examples},
                          {"held_out_examples", progress.held_out_examples},
                          {"skipped_empty", progress.skipped_empty}});
    }
  } catch (...) {
    remove_parts(out);
    throw;
  }
  if (progress.cancelled) remove_parts(out);
  return progress;
}

}  // namespace kda::text
