// Our own JSON form of the config.
#include <array>

#include "io/config_reader.h"
#include "io/json.h"
#include "kda/error.h"
#include "model/config.h"
#include "model/config_hf.h"
#include "model/layer_lists.h"

namespace kda::model {
namespace {

constexpr const char* kModelType = "kda";
constexpr std::array<std::string_view, 2> kActivations = {"silu", "situ"};
constexpr std::array<std::string_view, 3> kAttnResModes = {"off", "block", "full"};

io::Json id_or_null(std::int64_t id) { return id < 0 ? io::Json(nullptr) : io::Json(id); }

void read_id(io::ConfigReader& reader, const char* key, std::int64_t& id) {
  const io::Json* value = reader.raw(key);
  if (value == nullptr || value->is_null()) return;
  id = reader.require_int(key, 0);
}

io::Json mla_to_json(const MlaConfig& mla) {
  io::Json json;
  json["num_heads"] = mla.num_heads;
  json["q_lora_rank"] = mla.q_lora_rank;
  json["kv_lora_rank"] = mla.kv_lora_rank;
  json["qk_nope_head_dim"] = mla.qk_nope_head_dim;
  json["qk_rope_head_dim"] = mla.qk_rope_head_dim;
  json["v_head_dim"] = mla.v_head_dim;
  json["output_gate"] = mla.output_gate;
  json["latent_norm_eps"] = mla.latent_norm_eps;
  return json;
}

MlaConfig mla_from_json(io::ConfigReader reader) {
  MlaConfig mla;
  mla.num_heads = reader.require_int("num_heads");
  reader.read_int("q_lora_rank", mla.q_lora_rank);
  mla.kv_lora_rank = reader.require_int("kv_lora_rank");
  mla.qk_nope_head_dim = reader.require_int("qk_nope_head_dim");
  reader.read_int("qk_rope_head_dim", mla.qk_rope_head_dim);
  mla.v_head_dim = reader.require_int("v_head_dim");
  mla.output_gate = reader.require_bool("output_gate");
  reader.read_number("latent_norm_eps", mla.latent_norm_eps);
  reader.finish();
  return mla;
}

io::Json moe_to_json(const MoeConfig& moe) {
  io::Json json;
  json["num_experts"] = moe.num_experts;
  json["num_experts_per_token"] = moe.num_experts_per_token;
  json["num_shared_experts"] = moe.num_shared_experts;
  json["intermediate_size"] = moe.intermediate_size;
  json["latent_size"] = moe.latent_size;
  json["latent_norm"] = moe.latent_norm;
  json["renormalize"] = moe.renormalize;
  json["routed_scaling_factor"] = moe.routed_scaling_factor;
  json["num_groups"] = moe.num_groups;
  json["topk_groups"] = moe.topk_groups;
  json["weights_include_bias"] = moe.weights_include_bias;
  return json;
}

MoeConfig moe_from_json(io::ConfigReader reader) {
  MoeConfig moe;
  moe.num_experts = reader.require_int("num_experts");
  moe.num_experts_per_token = reader.require_int("num_experts_per_token");
  reader.read_int("num_shared_experts", moe.num_shared_experts);
  moe.intermediate_size = reader.require_int("intermediate_size");
  moe.latent_size = reader.require_int("latent_size");
  moe.latent_norm = reader.require_bool("latent_norm");
  reader.read_bool("renormalize", moe.renormalize);
  reader.read_number("routed_scaling_factor", moe.routed_scaling_factor);
  reader.read_int("num_groups", moe.num_groups);
  reader.read_int("topk_groups", moe.topk_groups);
  reader.read_bool("weights_include_bias", moe.weights_include_bias);
  reader.finish();
  return moe;
}

// The fields that make the K3-like model. All of them are written, so that each can be seen and
// changed by name; the plain model's form has none.
void write_k3_fields(const KDAConfig& c, io::Json& attention, io::Json& top) {
  if (c.full_attn_layers.empty()) {
    attention["full_attn_period"] = c.full_attn_period;
  } else {
    io::Json kda = io::Json::array();
    for (std::int64_t i = 0; i < c.num_layers; ++i) {
      if (!c.is_mla(i)) kda.push_back(i + 1);
    }
    attention["kda_layers"] = kda;
    attention["full_attn_layers"] = c.full_attn_layers;
  }
  if (c.mla != MlaConfig{}) top["mla_config"] = mla_to_json(c.mla);
  if (c.moe != MoeConfig{}) top["moe_config"] = moe_to_json(c.moe);
  top["first_k_dense_replace"] = c.first_dense_layers;
  top["hidden_act"] = name_of(c.activation.kind);
  top["activation_situ_beta"] = c.activation.situ_beta;
  top["activation_situ_linear_beta"] = c.activation.situ_linear_beta;
  io::Json attn_res;
  attn_res["mode"] = name_of(c.attn_res.mode);
  attn_res["block_size"] = c.attn_res.block_size;
  top["attn_res"] = attn_res;
}

void read_k3_fields(io::ConfigReader& attention, io::ConfigReader& top, KDAConfig& c) {
  attention.read_int("full_attn_period", c.full_attn_period);
  if (attention.has("kda_layers") || attention.has("full_attn_layers")) {
    if (c.num_layers < 1 || c.num_layers > 4096) c.validate();
    c.full_attn_layers = read_layer_lists(attention, c.num_layers);
  }
  if (top.has("mla_config")) c.mla = mla_from_json(top.object("mla_config"));
  if (top.has("moe_config")) c.moe = moe_from_json(top.object("moe_config"));
  top.read_int("first_k_dense_replace", c.first_dense_layers);
  if (const auto kind = top.read_choice("hidden_act", kActivations)) {
    c.activation.kind = static_cast<ActivationKind>(*kind);
  }
  top.read_number("activation_situ_beta", c.activation.situ_beta);
  top.read_number("activation_situ_linear_beta", c.activation.situ_linear_beta);
  if (top.has("attn_res")) {
    io::ConfigReader attn_res = top.object("attn_res");
    if (const auto mode = attn_res.read_choice("mode", kAttnResModes)) {
      c.attn_res.mode = static_cast<AttnResMode>(*mode);
    }
    attn_res.read_int("block_size", c.attn_res.block_size);
    attn_res.finish();
  }
}

}  // namespace

std::string KDAConfig::to_json() const {
  io::Json attention;
  attention["num_heads"] = num_heads;
  attention["num_v_heads"] = num_v_heads;
  attention["head_k_dim"] = head_k_dim;
  attention["head_v_dim"] = head_v_dim;
  attention["short_conv_kernel_size"] = conv_size;
  attention["gate_lower_bound"] =
      gate_lower_bound ? io::Json(*gate_lower_bound) : io::Json(nullptr);
  attention["use_full_rank_gate"] = full_rank_gate;
  attention["gate_low_rank"] = gate_low_rank;
  attention["allow_neg_eigval"] = allow_neg_eigval;
  attention["chunk_size"] = chunk;
  io::Json top;
  top["architectures"] = {"KDAForCausalLM"};
  top["model_type"] = kModelType;
  top["vocab_size"] = vocab_size;
  top["hidden_size"] = hidden_size;
  top["num_hidden_layers"] = num_layers;
  top["intermediate_size"] = intermediate_size;
  if (!is_plain()) write_k3_fields(*this, attention, top);
  top["linear_attn_config"] = attention;
  top["rms_norm_eps"] = norm_eps;
  top["initializer_range"] = initializer_range;
  top["tie_word_embeddings"] = tie_embeddings;
  top["bos_token_id"] = id_or_null(bos_id);
  top["eos_token_id"] = id_or_null(eos_id);
  top["pad_token_id"] = id_or_null(pad_id);
  top["max_position_embeddings"] = max_seq_len;
  return top.dump(2) + "\n";
}

KDAConfig KDAConfig::from_json(const std::string& text) {
  const io::Json json = io::parse_json(text, "config");
  io::ConfigReader top(json, "config");
  const std::string type = top.require_string("model_type");
  if (is_hf_model_type(type)) return config_from_hf(json);
  if (type != kModelType) {
    top.fail("model_type",
             "expected \"kda\", \"kimi_linear\" or \"kimi_k3\", got \"" + type + "\"");
  }
  KDAConfig c;
  std::vector<std::string> architectures;
  top.read_strings("architectures", architectures);
  c.vocab_size = top.require_int("vocab_size");
  c.hidden_size = top.require_int("hidden_size");
  c.num_layers = top.require_int("num_hidden_layers");
  c.intermediate_size = top.require_int("intermediate_size");
  top.read_number("rms_norm_eps", c.norm_eps);
  top.read_number("initializer_range", c.initializer_range);
  c.tie_embeddings = top.require_bool("tie_word_embeddings");
  read_id(top, "bos_token_id", c.bos_id);
  read_id(top, "eos_token_id", c.eos_id);
  read_id(top, "pad_token_id", c.pad_id);
  top.read_int("max_position_embeddings", c.max_seq_len);

  io::ConfigReader attention = top.object("linear_attn_config");
  c.num_heads = attention.require_int("num_heads");
  c.num_v_heads = c.num_heads;
  attention.read_int("num_v_heads", c.num_v_heads);
  c.head_k_dim = attention.require_int("head_k_dim");
  c.head_v_dim = c.head_k_dim;
  attention.read_int("head_v_dim", c.head_v_dim);
  attention.read_int("short_conv_kernel_size", c.conv_size);
  // Required, like every key whose absence would mean another model.
  const io::Json* bound = attention.raw("gate_lower_bound");
  if (bound == nullptr) attention.fail("gate_lower_bound", "required: a number, or null");
  c.gate_lower_bound.reset();
  if (!bound->is_null()) c.gate_lower_bound = attention.require_number("gate_lower_bound");
  c.full_rank_gate = attention.require_bool("use_full_rank_gate");
  c.gate_low_rank = c.head_k_dim;
  attention.read_int("gate_low_rank", c.gate_low_rank);
  attention.read_bool("allow_neg_eigval", c.allow_neg_eigval);
  attention.read_int("chunk_size", c.chunk);
  read_k3_fields(attention, top, c);
  attention.finish();
  top.finish();
  c.validate();
  return c;
}

}  // namespace kda::model
