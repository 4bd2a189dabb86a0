/// From what a user calls a checkpoint to a model and its tokenizer.
#pragma once

#include <filesystem>
#include <string>

#include "model/causal_lm.h"
#include "text/tokenizer.h"

namespace kda::cli {

struct LoadedModel {
  std::filesystem::path folder;
  model::CausalLM model;
  text::Tokenizer tokenizer;
};

struct LoadModelOptions {
  std::string checkpoint;  ///< checkpoint folder, run folder, RUN/last, RUN/best
  std::string tokenizer;   ///< "" = the copy in the checkpoint
  std::string dtype = "fp32";
  std::string backend = "auto";
};

/// Verifies hashes, loads, warns about broken newer checkpoints. Throws kIo, kInvalidArgument.
LoadedModel load_for_use(const LoadModelOptions& options, const std::string& verb);

/// "fp32" or "bf16"; "fp16" is refused with its reason.
kda::DType compute_type(const std::string& dtype);

}  // namespace kda::cli
