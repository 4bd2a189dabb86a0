/// From what a user calls a checkpoint to a model and its tokenizer.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>

#include "model/causal_lm.h"
#include "text/tokenizer.h"

namespace kda::cli {

struct LoadedModel {
  std::filesystem::path folder;
  model::CausalLM model;
  text::Tokenizer tokenizer;
  std::string device;  ///< as shown: "cuda:0 (NVIDIA H200)", "cpu (auto: why)"
};

struct LoadModelOptions {
  std::string checkpoint;  ///< checkpoint, run or model folder (model_folder.h), RUN/last, RUN/best
  std::string tokenizer;   ///< "" = the copy in the checkpoint
  std::string dtype = "fp32";
  std::string device = "auto";
  std::string backend = "auto";
  int threads = 0;  ///< 0: the default of the process
};

/// --tokenizer, --dtype, --device, --backend and --threads of a verb that uses a model.
void add_model_options(CLI::App* verb, LoadModelOptions& options);

/// Chooses device and threads, verifies hashes, loads, warns about broken newer checkpoints. Throws
/// kIo, kInvalidArgument, and kUnsupported for a device that is not there. Must come before any
/// other use of torch in the process: it may load the CUDA library.
LoadedModel load_for_use(const LoadModelOptions& options, const std::string& verb);

/// The same without a tokenizer, which a downloaded model may lack: for token ids.
struct ModelAlone {
  std::filesystem::path folder;
  model::CausalLM model;
  std::string device;
};
ModelAlone load_model_alone(const LoadModelOptions& options, const std::string& verb);

/// "fp32" or "bf16"; "fp16" is refused with its reason.
kda::DType compute_type(const std::string& dtype);

}  // namespace kda::cli
