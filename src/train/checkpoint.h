/// The content of a checkpoint folder: enough to continue a run bit by bit, and a model folder that
/// stands on its own.
///
///   model.safetensors      weights, f32, names as in the model
///   config.json            model config
///   tokenizer.model        copy of the tokenizer
///   optimizer.safetensors  moments, gradients of an open accumulation window, torch's RNG state
///   trainer.json           options, trainer state, fingerprints
///   manifest.json          sizes and hashes of the above; written last
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "io/sha256.h"
#include "model/causal_lm.h"
#include "text/tokenizer.h"
#include "train/optimizer.h"
#include "train/options.h"
#include "train/run_folder.h"
#include "train/trainer_state.h"

namespace kda::train {

/// trainer.json.
struct TrainerFile {
  TrainOptions options;
  TrainerState state;
  std::string tokenizer_sha256;
  std::int64_t vocab_size = 0;
  std::string dataset;              ///< fingerprint of the token shards
  std::int64_t world_size = 1;      ///< processes that train together
  std::int64_t prompt_version = 0;  ///< of the template (text/prompts.h); 0: no fine-tuning
};

/// Writes RUN/step-... atomically. Throws kNonFinite, naming the parameter and writing nothing,
/// when a weight is NaN or infinite; kIo when the file system refuses. Returns the bytes written.
std::int64_t save_checkpoint(const std::filesystem::path& run, const model::CausalLM& model,
                             const Optimizer& optimizer, const text::Tokenizer& tokenizer,
                             const TrainerFile& file);

/// Reads trainer.json of a checkpoint. Throws kIo naming the file.
TrainerFile read_trainer_file(const std::filesystem::path& folder);

/// Copies weights, moments, pending gradients and RNG state, from whichever device they were saved,
/// into `model` and `optimizer`, in place
/// and tensor by tensor: no second copy of the model is ever held. Throws kIo or kInvalidArgument
/// naming file and tensor.
void restore_tensors(const std::filesystem::path& folder, const TrainerFile& file,
                     model::CausalLM& model, Optimizer& optimizer);

/// Bytes that a checkpoint of this model will have, about.
std::int64_t estimated_checkpoint_bytes(std::int64_t num_parameters, bool open_window);

/// Name of the first parameter with a NaN or infinity, or "".
std::string first_nonfinite_parameter(const std::vector<model::Parameter>& parameters);

}  // namespace kda::train
