/// Shape and options of the KDA language models, their presets and their JSON form.
///
/// The model is a decoder of `num_layers` blocks, each an attention layer followed by a
/// feed-forward layer, both pre-normalised. Plain: Kimi Delta Attention and SwiGLU everywhere.
/// K3-like: some layers are gated MLA, feed-forward layers are mixtures of experts, SiTU-GLU is the
/// activation, attention residuals may replace the additions. Sources: Kimi Linear report (arXiv
/// 2510.26692), Kimi K3 report (arXiv 2607.24653); the choices between them are listed in
/// docs/model.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/layer_config.h"

namespace kda::model {

/// Every field that the JSON form calls required has no usable default: zero is refused.
struct KDAConfig {
  std::int64_t vocab_size = 0;         ///< required, 2 .. 2^31-1
  std::int64_t hidden_size = 0;        ///< d, required
  std::int64_t num_layers = 0;         ///< required
  std::int64_t intermediate_size = 0;  ///< width of the dense feed-forward layers, required

  std::int64_t num_heads = 0;    ///< H, query/key heads, required
  std::int64_t num_v_heads = 0;  ///< HV, a multiple of H; JSON default: H
  std::int64_t head_k_dim = 0;   ///< K, required, at most 256
  std::int64_t head_v_dim = 0;   ///< V, at most 256; JSON default: K
  std::int64_t conv_size = 4;    ///< width of the causal depthwise convolution, 2 .. 4

  /// Present: safe gate, g = L * sigmoid(exp(A) (z + b)), -5 <= L < 0. Absent: standard gate,
  /// g = -exp(A) softplus(z + b).
  std::optional<double> gate_lower_bound = -5.0;
  bool full_rank_gate = true;      ///< output gate: one d -> HV*V matrix; false: through the rank
  std::int64_t gate_low_rank = 0;  ///< rank of the decay path (and output gate); JSON default: K
  bool allow_neg_eigval = false;   ///< beta in (0,2) instead of (0,1)
  std::int64_t chunk = 64;         ///< chunk length of the operator: 16, 32, 64 or 128

  // Off by default: the fields below make the K3-like model.

  /// Every n-th layer (counted from 1) and the last one are MLA; 0: none, unless listed.
  std::int64_t full_attn_period = 0;
  /// The MLA layers one by one, counted from 1 and rising; excludes `full_attn_period`.
  std::vector<std::int64_t> full_attn_layers;
  MlaConfig mla;                        ///< required when a layer is MLA
  MoeConfig moe;                        ///< off: every feed-forward layer is dense
  std::int64_t first_dense_layers = 0;  ///< layers before the first mixture of experts
  Activation activation;
  AttnResConfig attn_res;

  double norm_eps = 1e-5;
  double initializer_range = 0.02;
  bool tie_embeddings = true;

  std::int64_t bos_id = -1;  ///< -1: none (JSON null)
  std::int64_t eos_id = -1;
  std::int64_t pad_id = -1;

  std::int64_t max_seq_len = 4096;  ///< informational: the recurrence has no length limit

  bool operator==(const KDAConfig&) const = default;

  std::int64_t k_width() const { return num_heads * head_k_dim; }        ///< H*K
  std::int64_t v_width() const { return num_v_heads * head_v_dim; }      ///< HV*V
  std::int64_t decay_width() const { return num_v_heads * head_k_dim; }  ///< HV*K

  /// Layers are counted from 0 here.
  bool is_mla(std::int64_t layer) const;
  bool is_moe(std::int64_t layer) const { return moe.enabled() && layer >= first_dense_layers; }
  std::int64_t num_mla_layers() const;
  std::int64_t num_moe_layers() const;
  /// Whether every K3 field is at its default: the plain model, whose JSON form has none of them.
  bool is_plain() const;

  /// Throws kInvalidArgument naming the first field out of range, what is allowed and its value.
  void validate() const;

  /// HF-like `config.json` text with model_type "kda"; `from_json(to_json()) == *this`.
  std::string to_json() const;

  /// Strict: an unknown key (with the nearest known one), a missing required key, a wrong type, a
  /// foreign model_type or a value out of range throws kInvalidArgument naming the key. Reads our
  /// own form (model_type "kda") and the config.json of released Kimi-Linear and Kimi-K3
  /// checkpoints (model_type "kimi_linear", "kimi_k3"; see config_hf.h).
  static KDAConfig from_json(const std::string& text);

  /// "tiny", "toy": plain models. tiny: tests, about 100k parameters, vocabulary 256. toy: 8M
  /// parameters at vocabulary 8192, sized for CPU training. "k3-tiny", "k3-toy", "k3-0.5b":
  /// K3-like, see K3Config. Throws kInvalidArgument with the known names.
  static KDAConfig preset(const std::string& name);
  static std::vector<std::string> preset_names();
};

/// The K3-like presets under their own names: "tiny" (tests), "toy" (7.93M parameters, vocabulary
/// 8192), "0.5b" (415M, vocabulary 64000). `preset(x)` is `KDAConfig::preset("k3-" + x)`.
struct K3Config {
  static KDAConfig preset(const std::string& name);
};

/// `from_json` / `to_json` on a file; errors of reading are kIo and name the path, whether the file
/// is absent or holds nonsense.
KDAConfig load_config(const std::string& path);
void save_config(const KDAConfig& config, const std::string& path);

/// The value of "model_type" in a config file's text; throws kInvalidArgument when absent.
std::string model_type_of(const std::string& json_text);

}  // namespace kda::model
