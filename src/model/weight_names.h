/// How weight files name and cut the tensors of a model.
///
/// The model's own names are Hugging Face's, with one exception: the routed experts of a layer are
/// two stacked tensors here ("...experts.gate_up_proj", "...experts.down_proj") and three matrices
/// for each expert in released checkpoints ("...experts.7.w1.weight" gate, "w3" up, "w2" down).
/// Kimi-K3 puts "language_model." before every name and keeps a vision tower in the same file.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/parameter.h"

namespace kda::model {

inline constexpr const char* kHeadName = "lm_head.weight";
inline constexpr const char* kEmbeddingName = "model.embed_tokens.weight";
inline constexpr std::string_view kLanguagePrefix = "language_model.";

/// A part of a parameter that a file holds as one tensor.
struct StoredPart {
  std::string name;
  at::Tensor values;  ///< the part: a view of the parameter
};

/// The parameter as one tensor.
StoredPart whole(const Parameter& parameter);

/// The parameter as released checkpoints hold it: one part, or the matrices of all experts.
std::vector<StoredPart> released_parts(const Parameter& parameter);

/// "vision_tower.*", "mm_projector.*": parts of the file that are no part of the language model.
bool is_vision_name(std::string_view name);

/// Gate parameters decide decays close to 1, which bf16 cannot tell apart, and selection biases
/// decide between nearly equal scores: f32 in every file.
bool is_always_wide(const Parameter& parameter);

}  // namespace kda::model
