/// Models in the form of released checkpoints: config.json, names and layouts of Kimi-Linear or
/// Kimi-K3. The reverse is load_model (weights.h), which reads either form.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/json.h"
#include "model/causal_lm.h"
#include "model/weights.h"

namespace kda::model {

/// The config.json that `config_from_hf` reads back as a model with the same outputs: layer lists
/// written out, the chunk length of the operator left out.
///
/// Kimi-Linear (model_type "kimi_linear") when nothing of K3 is in use and its mixture weights
/// include the selection bias, as its released code computes them; else Kimi-K3 (model_type
/// "kimi_k3", the language model under "text_config"). Throws kUnsupported naming the field that
/// neither form can say: more value heads than heads, K != V, a gate rank other than K, doubled
/// beta, no MLA layer, attention residuals of every sub-layer, another eps inside MLA.
io::Json config_to_hf(const KDAConfig& config);

struct HfExportOptions {
  /// Of matrices; A_log, dt_bias, selection biases, convolutions and o_norm are f32 always.
  StoredType type = StoredType::kBF16;
  /// Size limit of one file in bytes; a larger tensor has a file of its own. 0: one file.
  std::int64_t max_shard_bytes = 0;
};

/// Writes config.json and model.safetensors into `folder`, or model-00001-of-000NN.safetensors and
/// model.safetensors.index.json; each file whole or not at all, config.json last. Returns the names
/// of the files. Errors: kUnsupported as above, kIo.
std::vector<std::string> export_hf(const CausalLM& model, const std::string& folder,
                                   const HfExportOptions& options = {});

}  // namespace kda::model
