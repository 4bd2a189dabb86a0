/// The ways in which `kda generate` takes prompts and gives texts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/model_loading.h"
#include "eval/text_session.h"
#include "text/language.h"

namespace kda::cli {

struct GenerateOptions {
  LoadModelOptions load;
  eval::ContinueOptions how;
  std::optional<text::Language> target;  ///< translate prompts into it
  std::string session;                   ///< folder, "" for none
  std::string input, output;             ///< JSONL files
  std::int64_t batch = 16;
  std::int64_t samples = 1;
  bool interactive = false;
  bool quiet = false;
};

/// Prompt and continuation on standard output, `samples` times.
int generate_once(const GenerateOptions& options, const std::string& prompt);

/// A line of standard input at a time, each added to one text that the model goes on with (or
/// translated on its own); lines that begin with "/" are commands.
int generate_interactively(const GenerateOptions& options);

/// Prompts from a JSONL file, texts into another.
int generate_jsonl(const GenerateOptions& options);

}  // namespace kda::cli
