#include "model/config_hf.h"

#include <array>
#include <string_view>

#include "io/config_reader.h"
#include "kda/error.h"
#include "model/layer_lists.h"

namespace kda::model {
namespace {

constexpr std::array<std::string_view, 2> kHiddenActs = {"silu", "situ"};

// Keys that say nothing of the language model's arithmetic.
constexpr std::array<const char*, 33> kPassedOver = {
    "architectures",
    "auto_map",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "use_cache",
    "head_dim",
    "model_max_length",
    "quantization_config",
    "compression_config",
    "vision_config",
    "media_placeholder_token_id",
    "image_placeholder",
    "ignore_index",
    "rope_theta",    // nothing is rotated
    "rope_scaling",  // likewise
    "rope_parameters",
    "pretraining_tp",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "is_decoder",
    "is_encoder_decoder",
    "problem_type",
    "id2label",
    "label2id",
    "_name_or_path",
    "name_or_path",
    "use_bidirectional_attention",
    "generation_config",
    "tokenizer_class",
    "use_grouped_topk",  // num_expert_group says the same
    "attention_dropout",
};

void pass_over(io::ConfigReader& reader) {
  for (const char* key : kPassedOver)
    reader.raw(key);
}

bool is_absent(io::ConfigReader& reader, const char* key) {
  const io::Json* value = reader.raw(key);
  return value == nullptr || value->is_null();
}

void read_token_id(io::ConfigReader& reader, const char* key, std::int64_t& id) {
  if (!is_absent(reader, key)) id = reader.require_int(key, 0);
}

// A switch that this model has in one position only.
void expect_bool(io::ConfigReader& reader, const char* key, bool expected) {
  bool value = expected;
  if (!is_absent(reader, key)) reader.read_bool(key, value);
  if (value != expected) {
    reader.fail(key, std::string("expected ") + (expected ? "true" : "false") +
                         ", the only form that this model has");
  }
}

void expect_int(io::ConfigReader& reader, const char* key, std::int64_t expected) {
  std::int64_t value = expected;
  if (!is_absent(reader, key)) reader.read_int(key, value);
  if (value != expected) {
    reader.fail(key, "expected " + std::to_string(expected) +
                         ", the only form that this model has, got " + std::to_string(value));
  }
}

void read_linear_attention(io::ConfigReader reader, std::int64_t attention_heads, KDAConfig& c) {
  c.num_heads = reader.require_int("num_heads");
  if (c.num_heads != attention_heads) {
    reader.fail("num_heads", "expected num_attention_heads " + std::to_string(attention_heads) +
                                 ", got " + std::to_string(c.num_heads));
  }
  c.num_v_heads = c.num_heads;
  c.head_k_dim = reader.require_int("head_dim");
  c.head_v_dim = c.head_k_dim;
  c.gate_low_rank = c.head_k_dim;
  c.conv_size = reader.require_int("short_conv_kernel_size");
  c.gate_lower_bound.reset();
  if (!is_absent(reader, "gate_lower_bound")) {
    c.gate_lower_bound = reader.require_number("gate_lower_bound");
  }
  c.full_rank_gate = false;
  reader.read_bool("use_full_rank_gate", c.full_rank_gate);
  c.full_attn_layers = read_layer_lists(reader, c.num_layers);
  reader.finish();
}

void read_mla(io::ConfigReader& reader, std::int64_t heads, KDAConfig& c) {
  if (!reader.require_bool("mla_use_nope")) {
    reader.fail("mla_use_nope", "expected true: rotary positions are not part of this model");
  }
  MlaConfig mla;
  mla.num_heads = heads;
  if (!is_absent(reader, "q_lora_rank")) mla.q_lora_rank = reader.require_int("q_lora_rank", 1);
  mla.kv_lora_rank = reader.require_int("kv_lora_rank");
  mla.qk_nope_head_dim = reader.require_int("qk_nope_head_dim");
  mla.qk_rope_head_dim = reader.require_int("qk_rope_head_dim");
  mla.v_head_dim = reader.require_int("v_head_dim");
  mla.output_gate = false;
  reader.read_bool("mla_use_output_gate", mla.output_gate);
  if (!c.full_attn_layers.empty()) c.mla = mla;
}

void read_experts(io::ConfigReader& reader, bool is_k3, KDAConfig& c) {
  if (is_absent(reader, "num_experts")) return;
  MoeConfig& moe = c.moe;
  moe.num_experts = reader.require_int("num_experts");
  moe.num_experts_per_token = reader.require_int("num_experts_per_token");
  moe.num_shared_experts = reader.require_int("num_shared_experts");
  moe.intermediate_size = reader.require_int("moe_intermediate_size");
  moe.renormalize = reader.require_bool("moe_renormalize");
  moe.routed_scaling_factor = reader.require_number("routed_scaling_factor");
  reader.read_int("num_expert_group", moe.num_groups);
  reader.read_int("topk_group", moe.topk_groups);
  const std::string function = reader.require_string("moe_router_activation_func");
  if (function != "sigmoid") {
    reader.fail("moe_router_activation_func", "expected \"sigmoid\", got \"" + function + "\"");
  }
  if (!is_absent(reader, "topk_method") && reader.require_string("topk_method") != "noaux_tc") {
    reader.fail("topk_method", "expected \"noaux_tc\"");
  }
  if (!is_absent(reader, "routed_expert_hidden_size")) {
    moe.latent_size = reader.require_int("routed_expert_hidden_size", 1);
  }
  reader.read_bool("latent_moe_use_norm", moe.latent_norm);
  // The released Kimi-Linear code gathers the weights after adding the bias; K3's does not.
  moe.weights_include_bias = !is_k3;
  c.first_dense_layers = reader.require_int("first_k_dense_replace");
  expect_int(reader, "moe_layer_freq", 1);
}

KDAConfig read_language_model(io::ConfigReader& reader, bool wrapped) {
  KDAConfig c;
  const bool is_k3 = wrapped || !is_absent(reader, "routed_expert_hidden_size") ||
                     !is_absent(reader, "attn_res_block_size");
  c.vocab_size = reader.require_int("vocab_size");
  c.hidden_size = reader.require_int("hidden_size");
  c.num_layers = reader.require_int("num_hidden_layers", 1, 4096);
  c.intermediate_size = reader.require_int("intermediate_size");
  const std::int64_t heads = reader.require_int("num_attention_heads");
  const std::int64_t kv_heads = reader.require_int("num_key_value_heads");
  if (kv_heads != heads) {
    reader.fail("num_key_value_heads", "expected num_attention_heads " + std::to_string(heads) +
                                           ", got " + std::to_string(kv_heads));
  }
  c.norm_eps = reader.require_number("rms_norm_eps");
  reader.read_number("initializer_range", c.initializer_range);
  c.tie_embeddings = reader.require_bool("tie_word_embeddings");
  read_token_id(reader, "bos_token_id", c.bos_id);
  read_token_id(reader, "eos_token_id", c.eos_id);
  read_token_id(reader, "pad_token_id", c.pad_id);
  c.max_seq_len = std::int64_t{1} << 20;
  reader.read_int("model_max_length", c.max_seq_len);
  reader.read_int("max_position_embeddings", c.max_seq_len);

  if (!reader.has("hidden_act")) reader.fail("hidden_act", "required: \"silu\" or \"situ\"");
  c.activation.kind = static_cast<ActivationKind>(*reader.read_choice("hidden_act", kHiddenActs));
  if (c.activation.kind == ActivationKind::kSitu) {
    c.activation.situ_beta = reader.require_number("activation_situ_beta");
    // null: the linear branch is not capped
    const bool capped = !reader.has("activation_situ_linear_beta") ||
                        !is_absent(reader, "activation_situ_linear_beta");
    c.activation.situ_linear_beta =
        capped ? reader.require_number("activation_situ_linear_beta") : 0.0;
  } else {
    reader.raw("activation_situ_beta");
    reader.raw("activation_situ_linear_beta");
  }
  if (!is_absent(reader, "attn_res_block_size")) {
    c.attn_res.mode = AttnResMode::kBlock;
    c.attn_res.block_size = reader.require_int("attn_res_block_size", 1);
  }
  if (!reader.has("linear_attn_config")) reader.fail("linear_attn_config", "required");
  read_linear_attention(reader.object("linear_attn_config"), heads, c);
  read_mla(reader, heads, c);
  read_experts(reader, is_k3, c);
  expect_int(reader, "num_nextn_predict_layers", 0);
  expect_bool(reader, "attention_bias", false);
  return c;
}

}  // namespace

bool is_hf_model_type(const std::string& model_type) {
  return model_type == "kimi_linear" || model_type == "kimi_k3";
}

KDAConfig config_from_hf(const io::Json& json) {
  io::ConfigReader top(json, "config");
  const std::string type = top.require_string("model_type");
  if (!is_hf_model_type(type)) {
    top.fail("model_type", "expected \"kimi_linear\" or \"kimi_k3\", got \"" + type + "\"");
  }
  KDAConfig config;
  pass_over(top);
  if (!top.has("text_config")) {
    config = read_language_model(top, false);
  } else {
    io::ConfigReader text = top.object("text_config");
    text.raw("model_type");
    pass_over(text);
    config = read_language_model(text, true);
    text.finish();
    // The wrapper repeats some of the language model's keys.
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings"})
      top.raw(key);
  }
  top.finish();
  config.validate();
  return config;
}

}  // namespace kda::model
