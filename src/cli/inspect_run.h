/// What `kda trace` and `kda extract` have in common: a model and the tokens of one text.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/model_loading.h"
#include "inspect/graph.h"
#include "inspect/session.h"
#include "io/json.h"
#include "model/causal_lm.h"

namespace kda::cli {

struct InspectOptions {
  LoadModelOptions load;
  std::string text;
  bool has_text = false;
  std::string prompt_file;
  std::string ids;  ///< "1,17,403"
  std::string open;
  inspect::TraceOptions how;
};

struct InspectRun {
  std::filesystem::path folder;
  model::CausalLM model;
  std::vector<std::int64_t> ids;
  io::Json run;     ///< as in the files (docs/inspection.md)
  io::Json tokens;  ///< of `ids`, without those that are decoded

  /// Adds decoded ids to `tokens`.
  void add_tokens(const std::vector<std::int64_t>& all);
  /// Two lines: the model and how it runs, the tokens.
  std::string text() const;

  std::vector<std::string> pieces;  ///< of every id of the tokenizer; empty without one
  std::string device{};             ///< as shown, with what it is or why: "cpu (auto: ...)"
};

/// --ckpt, the ways to give a text, how to run, --decode, --backward and --open.
void add_inspect_options(CLI::App* verb, InspectOptions& options);

/// Loads the model and makes token ids. A tokenizer is needed for text only. Throws what
/// load_for_use throws, and kInvalidArgument for no text or several.
InspectRun open_for_inspection(const InspectOptions& options, const std::string& verb);

/// Opens the KDA operators that `list` names: labels, module paths, globs, or "all". Throws
/// kInvalidArgument for an item that names none, with those that there are.
void open_operators(inspect::Graph& graph, const std::string& list);

}  // namespace kda::cli
