/// The config.json of released checkpoints.
#pragma once

#include <string>

#include "io/json.h"
#include "model/config.h"

namespace kda::model {

/// Reads the config.json of a Kimi-Linear (model_type "kimi_linear") or Kimi-K3 checkpoint
/// (model_type "kimi_k3" with the language model under "text_config").
///
/// A key whose absence would mean another model is required: no class default of any library
/// stands in for it. Absent K3 keys mean Kimi-Linear: SiLU, no latent width, low-rank gate,
/// softplus gate, no output gate of MLA, no attention residuals. Checked: `kda_layers` and
/// `full_attn_layers` rise, share nothing and cover every layer; key/value heads = heads = heads of
/// the linear attention; no rotation (`mla_use_nope`), sigmoid router, no extra prediction layers.
/// Keys without a meaning for the language model (vision, dtype, code mapping) are passed over by
/// name, any other unknown key is refused. Throws kInvalidArgument naming the key.
KDAConfig config_from_hf(const io::Json& json);

/// Whether a model_type names such a checkpoint.
bool is_hf_model_type(const std::string& model_type);

}  // namespace kda::model
