/// Shape and options of the KDA language model, its presets and its JSON form.
///
/// The model is a decoder of `num_layers` blocks, each a Kimi Delta Attention layer followed by a
/// SwiGLU feed-forward layer, both pre-normalised. Sources: Kimi Linear report (arXiv 2510.26692),
/// Kimi K3 report (arXiv 2607.24653); the choices between them are listed in docs/model.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kda::model {

/// Every field that the JSON form calls required has no usable default: zero is refused.
struct KDAConfig {
  std::int64_t vocab_size = 0;         ///< required, 2 .. 2^31-1
  std::int64_t hidden_size = 0;        ///< d, required
  std::int64_t num_layers = 0;         ///< required
  std::int64_t intermediate_size = 0;  ///< width of the SwiGLU layer, required

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

  /// Throws kInvalidArgument naming the first field out of range, what is allowed and its value.
  void validate() const;

  /// HF-like `config.json` text with model_type "kda"; `from_json(to_json()) == *this`.
  std::string to_json() const;

  /// Strict: an unknown key (with the nearest known one), a missing required key, a wrong type, a
  /// foreign model_type or a value out of range throws kInvalidArgument naming the key.
  static KDAConfig from_json(const std::string& text);

  /// "tiny": tests, about 100k parameters, vocabulary 256. "toy": 8M parameters at vocabulary
  /// 8192, sized for CPU training. Throws kInvalidArgument with the known names.
  static KDAConfig preset(const std::string& name);
  static std::vector<std::string> preset_names();
};

/// `from_json` / `to_json` on a file; errors of reading are kIo and name the path, whether the file
/// is absent or holds nonsense.
KDAConfig load_config(const std::string& path);
void save_config(const KDAConfig& config, const std::string& path);

/// The value of "model_type" in a config file's text; throws kInvalidArgument when absent.
std::string model_type_of(const std::string& json_text);

}  // namespace kda::model
