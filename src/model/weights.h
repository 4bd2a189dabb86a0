/// Weight files: safetensors with Hugging Face names (weight_names.h). What the trainer writes
/// holds stacked experts; the forms of released checkpoints are read as they are and written by
/// hf_export.h.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/causal_lm.h"

namespace kda::model {

/// Stored type of matrices, embeddings, norms and convolutions; A_log, dt_bias and selection biases
/// are f32 always.
enum class StoredType : std::uint8_t { kF32, kBF16 };

struct SaveOptions {
  StoredType type = StoredType::kF32;
  std::vector<std::pair<std::string, std::string>> metadata;  ///< into `__metadata__`
};

/// Writes every parameter and buffer once (a tied head is not stored) to one file, whole or not at
/// all.
void save_weights(const CausalLM& model, const std::string& path, const SaveOptions& options = {});

struct LoadOptions {
  bool strict = true;  ///< false: missing and left-over tensors become warnings; shapes never do
};

/// Copies the file's tensors into the model's parameters and buffers, in place (optimizers keep
/// their references). `path` is a file, an index of several or a folder with either. Returns
/// warnings: upcast gate parameters, an ignored copy of a tied head, skipped vision tensors.
/// Missing, left-over and mis-shaped tensors are reported together in one kInvalidArgument, up to
/// 20 names; the model is then unchanged. A_log may be [HV], [1,1,HV,1] or zero-padded; names may
/// have the prefix "language_model."; experts may be stacked or one by one, any matrix in MXFP4.
std::vector<std::string> load_weights(CausalLM& model, const std::string& path,
                                      const LoadOptions& options = {});

/// A model folder: `config.json` and `model.safetensors`.
void save_model(const CausalLM& model, const std::string& folder, const SaveOptions& options = {});
CausalLM load_model(const std::string& folder, const ModelOptions& options,
                    std::vector<std::string>* warnings = nullptr);

}  // namespace kda::model
