#include "model/config.h"

#include <algorithm>
#include <cmath>

#include "io/atomic_file.h"
#include "io/config_reader.h"
#include "io/escape.h"
#include "io/json.h"
#include "io/number_text.h"
#include "kda/error.h"

namespace kda::model {
namespace {

constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;

[[noreturn]] void refuse(const std::string& field, const std::string& expected,
                         const std::string& given) {
  throw Error(ErrorCode::kInvalidArgument,
              "config: " + field + ": expected " + expected + ", got " + given);
}

void check_range(const char* field, std::int64_t value, std::int64_t min, std::int64_t max) {
  if (value >= min && value <= max) return;
  refuse(field, "an integer in [" + std::to_string(min) + ", " + std::to_string(max) + "]",
         std::to_string(value));
}

void check_number(const char* field, double value, double above, double at_most) {
  if (value > above && value <= at_most) return;
  refuse(field, "a number in (" + io::number_text(above) + ", " + io::number_text(at_most) + "]",
         io::number_text(value));
}

void check_mla(const MlaConfig& mla) {
  check_range("mla_config.num_heads", mla.num_heads, 1, 4096);
  check_range("mla_config.q_lora_rank", mla.q_lora_rank, 0, kMaxWidth);
  check_range("mla_config.kv_lora_rank", mla.kv_lora_rank, 1, kMaxWidth);
  check_range("mla_config.qk_nope_head_dim", mla.qk_nope_head_dim, 1, 4096);
  check_range("mla_config.qk_rope_head_dim", mla.qk_rope_head_dim, 0, 4096);
  if (mla.qk_rope_head_dim % 2 != 0) {
    refuse("mla_config.qk_rope_head_dim", "an even number", std::to_string(mla.qk_rope_head_dim));
  }
  check_range("mla_config.v_head_dim", mla.v_head_dim, 1, 4096);
  check_number("mla_config.latent_norm_eps", mla.latent_norm_eps, 0.0, 1.0);
}

void check_moe(const MoeConfig& moe) {
  check_range("moe_config.num_experts", moe.num_experts, 1, 65536);
  check_range("moe_config.num_groups", moe.num_groups, 1, moe.num_experts);
  if (moe.num_experts % moe.num_groups != 0) {
    refuse("moe_config.num_groups", "a divisor of num_experts " + std::to_string(moe.num_experts),
           std::to_string(moe.num_groups));
  }
  check_range("moe_config.topk_groups", moe.topk_groups, 1, moe.num_groups);
  // Only experts of the chosen groups can be reached.
  check_range("moe_config.num_experts_per_token", moe.num_experts_per_token, 1,
              moe.num_experts / moe.num_groups * moe.topk_groups);
  check_range("moe_config.num_shared_experts", moe.num_shared_experts, 0, 4096);
  check_range("moe_config.intermediate_size", moe.intermediate_size, 1, kMaxWidth);
  check_range("moe_config.latent_size", moe.latent_size, 0, kMaxWidth);
  if (moe.latent_norm && moe.latent_size == 0) {
    refuse("moe_config.latent_norm", "false where latent_size is 0", "true");
  }
  check_number("moe_config.routed_scaling_factor", moe.routed_scaling_factor, 0.0, 1e6);
}

void check_layer_kinds(const KDAConfig& c) {
  check_range("linear_attn_config.full_attn_period", c.full_attn_period, 0, 4096);
  if (c.full_attn_period > 0 && !c.full_attn_layers.empty()) {
    refuse("linear_attn_config.full_attn_layers", "none beside full_attn_period", "both");
  }
  std::int64_t before = 0;
  for (const std::int64_t layer : c.full_attn_layers) {
    check_range("linear_attn_config.full_attn_layers", layer, before + 1, c.num_layers);
    before = layer;
  }
  if (c.num_mla_layers() > 0) {
    check_mla(c.mla);
  } else if (c.mla != MlaConfig{}) {
    refuse("mla_config", "none where no layer is MLA (linear_attn_config.full_attn_period 0)",
           "one");
  }
}

}  // namespace

// Names the keys of the JSON form, which is what users write.
void KDAConfig::validate() const {
  check_range("vocab_size", vocab_size, 2, (std::int64_t{1} << 31) - 1);
  check_range("hidden_size", hidden_size, 1, kMaxWidth);
  check_range("num_hidden_layers", num_layers, 1, 4096);
  check_range("intermediate_size", intermediate_size, 1, kMaxWidth);
  check_range("linear_attn_config.num_heads", num_heads, 1, 4096);
  check_range("linear_attn_config.num_v_heads", num_v_heads, 1, 4096);
  if (num_v_heads % num_heads != 0) {
    refuse("linear_attn_config.num_v_heads", "a multiple of num_heads " + std::to_string(num_heads),
           std::to_string(num_v_heads));
  }
  check_range("linear_attn_config.head_k_dim", head_k_dim, 1, 256);
  check_range("linear_attn_config.head_v_dim", head_v_dim, 1, 256);
  check_range("linear_attn_config.short_conv_kernel_size", conv_size, 2, 4);
  if (gate_lower_bound && !(*gate_lower_bound >= -5.0 && *gate_lower_bound < 0.0)) {
    refuse("linear_attn_config.gate_lower_bound",
           "a number in [-5, 0), or null for the standard gate",
           io::number_text(*gate_lower_bound));
  }
  check_range("linear_attn_config.gate_low_rank", gate_low_rank, 1, kMaxWidth);
  if (chunk != 16 && chunk != 32 && chunk != 64 && chunk != 128) {
    refuse("linear_attn_config.chunk_size", "16, 32, 64 or 128", std::to_string(chunk));
  }
  check_layer_kinds(*this);
  if (moe.enabled()) {
    check_moe(moe);
  } else if (moe != MoeConfig{}) {
    refuse("moe_config.num_experts", "an integer in [1, 65536]", std::to_string(moe.num_experts));
  }
  check_range("first_k_dense_replace", first_dense_layers, 0, moe.enabled() ? num_layers : 0);
  check_number("activation_situ_beta", activation.situ_beta, 0.0, 1e6);
  if (activation.situ_linear_beta != 0.0) {  // 0: not capped
    check_number("activation_situ_linear_beta", activation.situ_linear_beta, 0.0, 1e6);
  }
  check_range("attn_res.block_size", attn_res.block_size, 0, num_layers);
  if (!(norm_eps > 0.0 && norm_eps < 1.0)) {
    refuse("rms_norm_eps", "a number in (0, 1)", io::number_text(norm_eps));
  }
  if (!(initializer_range > 0.0 && initializer_range <= 10.0)) {
    refuse("initializer_range", "a number in (0, 10]", io::number_text(initializer_range));
  }
  check_range("bos_token_id", bos_id, -1, vocab_size - 1);
  check_range("eos_token_id", eos_id, -1, vocab_size - 1);
  check_range("pad_token_id", pad_id, -1, vocab_size - 1);
  if (pad_id >= 0 && pad_id == eos_id) {
    refuse("pad_token_id",
           "an id other than eos_token_id (a model that never learns EOS never stops), or null",
           std::to_string(pad_id));
  }
  check_range("max_position_embeddings", max_seq_len, 1, std::int64_t{1} << 40);
}

bool KDAConfig::is_mla(std::int64_t layer) const {
  if (full_attn_period > 0) {
    return (layer + 1) % full_attn_period == 0 || layer + 1 == num_layers;
  }
  return std::binary_search(full_attn_layers.begin(), full_attn_layers.end(), layer + 1);
}

std::int64_t KDAConfig::num_mla_layers() const {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < num_layers; ++i)
    count += is_mla(i) ? 1 : 0;
  return count;
}

std::int64_t KDAConfig::num_moe_layers() const {
  return moe.enabled() ? std::max<std::int64_t>(0, num_layers - first_dense_layers) : 0;
}

bool KDAConfig::is_plain() const {
  return full_attn_period == 0 && full_attn_layers.empty() && mla == MlaConfig{} &&
         moe == MoeConfig{} && first_dense_layers == 0 && activation == Activation{} &&
         attn_res == AttnResConfig{};
}

namespace {

// What the K3-like presets share: d and the widths of the heads decide the rest.
KDAConfig k3_base(std::int64_t hidden_size, std::int64_t num_heads, std::int64_t head_dim) {
  KDAConfig c;
  c.hidden_size = hidden_size;
  c.num_heads = num_heads;
  c.num_v_heads = num_heads;
  c.head_k_dim = head_dim;
  c.head_v_dim = head_dim;
  c.gate_low_rank = head_dim;
  c.full_attn_period = 4;
  c.mla.num_heads = num_heads;
  c.mla.qk_nope_head_dim = head_dim;
  c.mla.v_head_dim = head_dim;
  c.moe.latent_size = hidden_size / 2;
  c.moe.latent_norm = true;
  c.moe.num_experts_per_token = 2;
  c.moe.num_shared_experts = 2;
  c.activation.kind = ActivationKind::kSitu;
  return c;
}

// Dense layers, where a user asks for some, do as many products as the experts of a token.
void match_dense_width(KDAConfig& c) {
  c.intermediate_size =
      (c.moe.num_experts_per_token + c.moe.num_shared_experts) * c.moe.intermediate_size;
}

KDAConfig k3_tiny() {
  KDAConfig c = k3_base(64, 2, 16);
  c.vocab_size = 256;
  c.num_layers = 4;
  c.mla.kv_lora_rank = 16;
  c.moe.num_experts = 4;
  c.moe.intermediate_size = 32;
  c.chunk = 32;
  c.max_seq_len = 256;
  match_dense_width(c);
  return c;
}

KDAConfig k3_toy() {
  KDAConfig c = k3_base(256, 8, 16);
  c.vocab_size = 8192;
  c.num_layers = 4;
  c.mla.kv_lora_rank = 32;
  c.moe.num_experts = 16;
  c.moe.intermediate_size = 160;
  c.max_seq_len = 1024;
  match_dense_width(c);
  return c;
}

KDAConfig k3_half_billion() {
  KDAConfig c = k3_base(768, 12, 64);
  c.vocab_size = 64000;
  c.num_layers = 24;
  c.mla.kv_lora_rank = 192;
  c.moe.num_experts = 16;
  c.moe.intermediate_size = 512;
  c.max_seq_len = 4096;
  match_dense_width(c);
  return c;
}

}  // namespace

KDAConfig KDAConfig::preset(const std::string& name) {
  KDAConfig c;
  if (name == "tiny") {
    c.vocab_size = 256;
    c.hidden_size = 64;
    c.num_layers = 2;
    c.intermediate_size = 128;
    c.num_heads = 2;
    c.num_v_heads = 4;
    c.head_k_dim = 16;
    c.head_v_dim = 16;
    c.gate_low_rank = 16;
    c.chunk = 32;
    c.max_seq_len = 256;
  } else if (name == "toy") {
    // Untied: the input embedding costs no products, so 8M parameters train at the speed of 6M.
    c.vocab_size = 8192;
    c.hidden_size = 256;
    c.num_layers = 4;
    c.intermediate_size = 768;
    c.num_heads = 4;
    c.num_v_heads = 4;
    c.head_k_dim = 64;
    c.head_v_dim = 64;
    c.gate_low_rank = 64;
    c.tie_embeddings = false;
    c.max_seq_len = 1024;
  } else if (name == "k3-tiny") {
    c = k3_tiny();
  } else if (name == "k3-toy") {
    c = k3_toy();
  } else if (name == "k3-0.5b" || name == "0.5b") {
    c = k3_half_billion();
  } else {
    std::string known;
    for (const std::string& preset : preset_names())
      known += (known.empty() ? "" : ", ") + preset;
    throw Error(ErrorCode::kInvalidArgument,
                "preset: expected one of " + known + ", got \"" + name + "\"");
  }
  return c;
}

std::vector<std::string> KDAConfig::preset_names() {
  return {"tiny", "toy", "k3-tiny", "k3-toy", "k3-0.5b"};
}

KDAConfig K3Config::preset(const std::string& name) { return KDAConfig::preset("k3-" + name); }

KDAConfig load_config(const std::string& path) {
  const std::string text = io::read_file(path);
  try {
    const io::Json json = io::parse_json(text, "config");
    if (json.is_object() && json.value("format", io::Json()) == "kda-run") {
      throw Error(ErrorCode::kInvalidArgument,
                  "a run's configuration, expected a model's: the config.json of a checkpoint in "
                  "the run's folder (step-...)");
    }
    return KDAConfig::from_json(text);
  } catch (const Error& error) {
    throw Error(ErrorCode::kIo, io::escaped(path) + ": " + error.what());
  }
}

void save_config(const KDAConfig& config, const std::string& path) {
  config.validate();
  io::write_file_atomic(path, config.to_json());
}

std::string model_type_of(const std::string& json_text) {
  const io::Json json = io::parse_json(json_text, "config");
  io::ConfigReader reader(json, "config");
  return reader.require_string("model_type");
}

}  // namespace kda::model
