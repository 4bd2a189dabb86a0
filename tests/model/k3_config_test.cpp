// The K3-like fields of the config and the config.json of released checkpoints.
#include <gtest/gtest.h>

#include "io/json.h"
#include "model/config.h"
#include "model/cost.h"
#include "model/model_test_support.h"

namespace kda::test {
namespace {

using model::K3Config;
using model::KDAConfig;

std::string k3_refusal(const io::Json& json) {
  return error_of([&] { KDAConfig::from_json(json.dump()); }, ErrorCode::kInvalidArgument);
}

// The keys of a released Kimi-Linear config.json, with its numbers.
io::Json kimi_linear_json() {
  return io::parse_json(R"({
    "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear",
    "auto_map": {"AutoConfig": "configuration_kimi.KimiLinearConfig"},
    "vocab_size": 163840, "hidden_size": 2304, "num_hidden_layers": 8, "head_dim": 72,
    "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 9216,
    "hidden_act": "silu", "initializer_range": 0.02, "rms_norm_eps": 1e-05,
    "model_max_length": 1048576, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "moe_intermediate_size": 1024, "num_experts": 256, "num_experts_per_token": 8,
    "num_shared_experts": 1, "num_expert_group": 1, "topk_group": 1, "use_grouped_topk": true,
    "moe_renormalize": true, "moe_router_activation_func": "sigmoid",
    "routed_scaling_factor": 2.446, "q_lora_rank": null, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": true,
    "tie_word_embeddings": false, "num_nextn_predict_layers": 0, "rope_theta": 10000.0,
    "rope_scaling": null, "bos_token_id": 163584, "eos_token_id": 163586,
    "pad_token_id": 163839, "dtype": "bfloat16", "transformers_version": "4.57.1",
    "use_cache": true,
    "linear_attn_config": {"kda_layers": [1,2,3,5,6,7], "full_attn_layers": [4,8],
      "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4}})",
                        "Kimi-Linear");
}

// The keys of a released Kimi-K3 config.json; fewer layers, else its numbers.
io::Json kimi_k3_json() {
  io::Json text = kimi_linear_json();
  text["hidden_size"] = 7168;
  text["num_hidden_layers"] = 5;
  text["num_attention_heads"] = 96;
  text["num_key_value_heads"] = 96;
  text["intermediate_size"] = 33792;
  text["hidden_act"] = "situ";
  text["activation_situ_beta"] = 4.0;
  text["activation_situ_linear_beta"] = 25.0;
  text["attn_res_block_size"] = 2;
  text["moe_intermediate_size"] = 3072;
  text["num_experts"] = 896;
  text["num_experts_per_token"] = 16;
  text["num_shared_experts"] = 2;
  text["routed_scaling_factor"] = 1.0;
  text["routed_expert_hidden_size"] = 3584;
  text["latent_moe_use_norm"] = true;
  text["topk_method"] = "noaux_tc";
  text["q_lora_rank"] = 1536;
  text["mla_use_output_gate"] = true;
  text["max_position_embeddings"] = 1048576;
  io::Json& attention = text["linear_attn_config"];
  attention["kda_layers"] = {1, 2, 3};
  attention["full_attn_layers"] = {4, 5};
  attention["num_heads"] = 96;
  attention["gate_lower_bound"] = -5.0;
  attention["use_full_rank_gate"] = true;
  io::Json top;
  top["architectures"] = {"KimiK3ForConditionalGeneration"};
  top["model_type"] = "kimi_k3";
  top["text_config"] = text;
  top["vision_config"] = {{"hidden_size", 1152}};
  top["ignore_index"] = -100;
  return top;
}

TEST(K3Config_Presets, ParameterCounts) {
  const auto count = [](const char* name) {
    return static_cast<double>(model::count_parameters(K3Config::preset(name)).total());
  };
  EXPECT_NEAR(count("toy"), 7.93e6, 0.01 * 7.93e6);
  EXPECT_NEAR(count("0.5b"), 415.24e6, 0.001 * 415.24e6);
  EXPECT_EQ(K3Config::preset("toy"), KDAConfig::preset("k3-toy"));
  EXPECT_EQ(KDAConfig::preset("0.5b"), K3Config::preset("0.5b"));
  EXPECT_EQ(K3Config::preset("toy").num_mla_layers(), 1);
  EXPECT_EQ(K3Config::preset("0.5b").num_mla_layers(), 6);
  EXPECT_EQ(K3Config::preset("0.5b").num_moe_layers(), 24);
  error_of([] { K3Config::preset("1b"); }, ErrorCode::kInvalidArgument);
}

TEST(K3Config_Pattern, EveryFourthAndTheLast) {
  KDAConfig c = KDAConfig::preset("k3-toy");
  c.num_layers = 27;
  std::vector<std::int64_t> mla;
  for (std::int64_t i = 0; i < c.num_layers; ++i) {
    if (c.is_mla(i)) mla.push_back(i + 1);
  }
  EXPECT_EQ(mla, (std::vector<std::int64_t>{4, 8, 12, 16, 20, 24, 27}));
  c.full_attn_layers = mla;
  c.full_attn_period = 0;
  EXPECT_EQ(c.num_mla_layers(), 7);
  EXPECT_TRUE(c.is_mla(26));
  EXPECT_FALSE(c.is_mla(25));
  c.first_dense_layers = 2;
  EXPECT_FALSE(c.is_moe(1));
  EXPECT_TRUE(c.is_moe(2));
  EXPECT_EQ(c.num_moe_layers(), 25);
}

TEST(K3Config_RoundTrip, EveryFieldSurvives) {
  KDAConfig c = KDAConfig::preset("k3-toy");
  EXPECT_EQ(KDAConfig::from_json(c.to_json()), c);
  c.full_attn_period = 0;
  c.full_attn_layers = {2, 4};
  c.mla = {3, 24, 40, 18, 6, 10, false, 1e-5};
  c.moe = {12, 3, 1, 48, 0, false, false, 2.446, 4, 2, true};
  c.first_dense_layers = 1;
  c.activation = {model::ActivationKind::kSilu, 3.5, 20.0};
  c.attn_res = {model::AttnResMode::kBlock, 2};
  EXPECT_EQ(KDAConfig::from_json(c.to_json()), c);
  c.attn_res = {model::AttnResMode::kFull, 0};
  EXPECT_EQ(KDAConfig::from_json(c.to_json()), c);
  const io::Json json = io::parse_json(c.to_json(), "config");
  EXPECT_EQ(json["linear_attn_config"]["kda_layers"], io::Json({1, 3}));
}

TEST(K3Config_RoundTrip, ThePlainFormHasNoNewKey) {
  const io::Json json = io::parse_json(KDAConfig::preset("toy").to_json(), "config");
  for (const char* key : {"mla_config", "moe_config", "hidden_act", "attn_res",
                          "first_k_dense_replace", "activation_situ_beta"}) {
    EXPECT_FALSE(json.contains(key)) << key;
  }
  EXPECT_FALSE(json["linear_attn_config"].contains("full_attn_period"));
}

TEST(K3Config_AttnRes, AutomaticBlockIsAnEighth) {
  const model::AttnResConfig automatic{model::AttnResMode::kBlock, 0};
  EXPECT_EQ(automatic.layers_per_block(24), 3);
  EXPECT_EQ(automatic.layers_per_block(4), 1);
  EXPECT_EQ(automatic.layers_per_block(1), 1);
  EXPECT_EQ((model::AttnResConfig{model::AttnResMode::kBlock, 2}.layers_per_block(24)), 2);
}

TEST(K3Config_Ranges, EachFieldIsChecked) {
  const auto refused = [](const char* field, const std::function<void(KDAConfig&)>& spoil) {
    KDAConfig c = KDAConfig::preset("k3-toy");
    spoil(c);
    expect_contains(error_of([&] { c.validate(); }, ErrorCode::kInvalidArgument), field);
  };
  refused("mla_config.num_heads", [](KDAConfig& c) { c.mla.num_heads = 0; });
  refused("mla_config.kv_lora_rank", [](KDAConfig& c) { c.mla.kv_lora_rank = 0; });
  refused("mla_config.qk_nope_head_dim", [](KDAConfig& c) { c.mla.qk_nope_head_dim = 0; });
  refused("mla_config.qk_rope_head_dim", [](KDAConfig& c) { c.mla.qk_rope_head_dim = 3; });
  refused("mla_config.v_head_dim", [](KDAConfig& c) { c.mla.v_head_dim = 0; });
  refused("mla_config.latent_norm_eps", [](KDAConfig& c) { c.mla.latent_norm_eps = 0; });
  refused("mla_config", [](KDAConfig& c) { c.full_attn_period = 0; });
  refused("full_attn_layers", [](KDAConfig& c) { c.full_attn_layers = {4}; });
  refused("full_attn_layers", [](KDAConfig& c) {
    c.full_attn_period = 0;
    c.full_attn_layers = {2, 2};
  });
  refused("full_attn_layers", [](KDAConfig& c) {
    c.full_attn_period = 0;
    c.full_attn_layers = {5};
  });
  refused("full_attn_period", [](KDAConfig& c) { c.full_attn_period = -1; });
  refused("moe_config.num_experts", [](KDAConfig& c) { c.moe.num_experts = 0; });
  refused("moe_config.num_experts_per_token", [](KDAConfig& c) {
    c.moe.num_groups = 4;
    c.moe.topk_groups = 1;
    c.moe.num_experts_per_token = 5;
  });
  refused("moe_config.num_groups", [](KDAConfig& c) { c.moe.num_groups = 3; });
  refused("moe_config.topk_groups", [](KDAConfig& c) { c.moe.topk_groups = 2; });
  refused("moe_config.num_shared_experts", [](KDAConfig& c) { c.moe.num_shared_experts = -1; });
  refused("moe_config.intermediate_size", [](KDAConfig& c) { c.moe.intermediate_size = 0; });
  refused("moe_config.latent_size", [](KDAConfig& c) { c.moe.latent_size = -1; });
  refused("moe_config.latent_norm", [](KDAConfig& c) { c.moe.latent_size = 0; });
  refused("routed_scaling_factor", [](KDAConfig& c) { c.moe.routed_scaling_factor = 0; });
  refused("first_k_dense_replace", [](KDAConfig& c) { c.first_dense_layers = 5; });
  refused("activation_situ_beta", [](KDAConfig& c) { c.activation.situ_beta = 0; });
  refused("activation_situ_linear_beta", [](KDAConfig& c) { c.activation.situ_linear_beta = -1; });
  refused("attn_res.block_size", [](KDAConfig& c) { c.attn_res.block_size = -1; });
}

TEST(K3Config_Strict, UnknownKeysAndModes) {
  io::Json json = io::parse_json(KDAConfig::preset("k3-toy").to_json(), "k3-toy");
  json["moe_config"]["num_expert"] = 3;
  expect_contains(k3_refusal(json), "num_experts");
  json = io::parse_json(KDAConfig::preset("k3-toy").to_json(), "k3-toy");
  json["attn_res"]["mode"] = "blocks";
  expect_contains(k3_refusal(json), "block");
  json = io::parse_json(KDAConfig::preset("k3-toy").to_json(), "k3-toy");
  json.erase("mla_config");
  expect_contains(k3_refusal(json), "mla_config");
}

TEST(K3Config_HuggingFace, KimiLinear) {
  const KDAConfig c = KDAConfig::from_json(kimi_linear_json().dump());
  EXPECT_EQ(c.num_layers, 8);
  EXPECT_EQ(c.full_attn_layers, (std::vector<std::int64_t>{4, 8}));
  EXPECT_EQ(c.head_k_dim, 128);
  EXPECT_EQ(c.gate_low_rank, 128);
  EXPECT_FALSE(c.full_rank_gate);
  EXPECT_FALSE(c.gate_lower_bound.has_value());
  EXPECT_EQ(c.mla, (model::MlaConfig{32, 0, 512, 128, 64, 128, false, 1e-6}));
  EXPECT_EQ(c.moe, (model::MoeConfig{256, 8, 1, 1024, 0, false, true, 2.446, 1, 1, true}));
  EXPECT_EQ(c.first_dense_layers, 1);
  EXPECT_EQ(c.activation, model::Activation{});
  EXPECT_EQ(c.attn_res.mode, model::AttnResMode::kOff);
  EXPECT_EQ(c.max_seq_len, 1048576);
  EXPECT_EQ(c.pad_id, 163839);
  EXPECT_EQ(KDAConfig::from_json(c.to_json()), c);
}

TEST(K3Config_HuggingFace, KimiK3) {
  const KDAConfig c = KDAConfig::from_json(kimi_k3_json().dump());
  EXPECT_EQ(c.gate_lower_bound, -5.0);
  EXPECT_TRUE(c.full_rank_gate);
  EXPECT_EQ(c.mla, (model::MlaConfig{96, 1536, 512, 128, 64, 128, true, 1e-6}));
  EXPECT_EQ(c.moe, (model::MoeConfig{896, 16, 2, 3072, 3584, true, true, 1.0, 1, 1, false}));
  EXPECT_EQ(c.activation.kind, model::ActivationKind::kSitu);
  EXPECT_EQ(c.attn_res, (model::AttnResConfig{model::AttnResMode::kBlock, 2}));
  EXPECT_EQ(c.full_attn_layers, (std::vector<std::int64_t>{4, 5}));
}

TEST(K3Config_HuggingFace, WhatDoesNotFitIsRefused) {
  const auto refused = [](const char* part, const std::function<void(io::Json&)>& spoil) {
    io::Json json = kimi_k3_json();
    spoil(json["text_config"]);
    expect_contains(k3_refusal(json), part);
  };
  refused("num_key_value_heads", [](io::Json& j) { j["num_key_value_heads"] = 8; });
  refused("kda_layers", [](io::Json& j) { j["linear_attn_config"]["kda_layers"] = {1, 3, 2}; });
  refused("layer 4", [](io::Json& j) { j["linear_attn_config"]["kda_layers"] = {1, 2, 3, 4}; });
  refused("layer 3", [](io::Json& j) { j["linear_attn_config"]["kda_layers"] = {1, 2}; });
  refused("full_attn_layers", [](io::Json& j) {
    j["linear_attn_config"]["full_attn_layers"] = {4, 6};
  });
  refused("linear_attn_config.num_heads",
          [](io::Json& j) { j["linear_attn_config"]["num_heads"] = 95; });
  refused("num_experts_per_token", [](io::Json& j) { j["num_experts_per_token"] = 897; });
  refused("num_groups", [](io::Json& j) { j["num_expert_group"] = 5; });
  refused("qk_rope_head_dim", [](io::Json& j) { j["qk_rope_head_dim"] = 63; });
  refused("mla_use_nope", [](io::Json& j) { j["mla_use_nope"] = false; });
  refused("sigmoid", [](io::Json& j) { j["moe_router_activation_func"] = "softmax"; });
  refused("num_nextn_predict_layers", [](io::Json& j) { j["num_nextn_predict_layers"] = 1; });
  refused("moe_layer_freq", [](io::Json& j) { j["moe_layer_freq"] = 2; });
  refused("topk_method", [](io::Json& j) { j["topk_method"] = "greedy"; });
  refused("sliding_window", [](io::Json& j) { j["sliding_window"] = 4096; });
  for (const char* key :
       {"rms_norm_eps", "hidden_act", "tie_word_embeddings", "kv_lora_rank", "mla_use_nope",
        "activation_situ_beta", "moe_renormalize", "first_k_dense_replace", "linear_attn_config"}) {
    refused(key, [&](io::Json& j) { j.erase(key); });
  }
}

}  // namespace
}  // namespace kda::test
