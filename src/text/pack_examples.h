/// From JSONL examples to token shards of prompts and answers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/prompts.h"
#include "text/tokenizer.h"

namespace kda::text {

/// One line of a JSONL file.
struct ExampleText {
  std::string prompt;  ///< with the template around it
  std::string answer;
  std::string identity;  ///< equal for both directions of one pair: what decides its side
};

/// Reads {"src", "tgt", "direction"} (en2zh or zh2en; without it `target` decides) or
/// {"instruction", "input" (optional), "output"}. Other keys are ignored. Throws kIo `what` with
/// what is missing.
ExampleText parse_example(std::string_view line, const std::string& what,
                          std::optional<Language> target);

struct PackExamplesOptions {
  std::optional<Language> target;  ///< of lines without a direction
  /// Share of examples set aside for evaluation, in [0, 0.5], chosen by the hash of the pair: both
  /// directions of a pair and its repetitions stay together.
  double held_out_share = 0;
};

struct PackExamplesProgress {
  std::uint64_t lines = 0;
  std::uint64_t bytes = 0;  ///< of the files, read so far
  std::uint64_t train_examples = 0;
  std::uint64_t held_out_examples = 0;
  std::uint64_t skipped_empty = 0;  ///< without an answer: nothing to learn
  bool cancelled = false;
};

/// Encodes every line with the shared template (prompts.h) and writes `out/train/00000.kdatok`,
/// `out/heldout/00000.kdatok` (when there are any), `out/tokenizer.model` and, last,
/// `out/manifest.json` (kind "example-shards"): documents alternate between prompt and answer.
/// `keep_going` is called after every line; a false result removes what was written. Error(kIo)
/// naming file and line; Error(kInvalidArgument) for a tokenizer without EOS, for BOS or pad ids
/// that equal EOS, or when no line is left to train on.
PackExamplesProgress pack_examples(
    const std::vector<std::filesystem::path>& files, const Tokenizer& tokenizer,
    const std::filesystem::path& out, const PackExamplesOptions& options,
    const std::function<bool(const PackExamplesProgress&)>& keep_going = {});

}  // namespace kda::text
