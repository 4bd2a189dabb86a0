#include "model/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "io/json.h"
#include "model/model_test_support.h"

namespace kda::test {
namespace {

using model::KDAConfig;

std::string refusal(const std::string& json) {
  return error_of([&] { KDAConfig::from_json(json); }, ErrorCode::kInvalidArgument);
}

io::Json toy_json() { return io::parse_json(KDAConfig::preset("toy").to_json(), "toy"); }

TEST(Config_RoundTrip, EveryFieldSurvives) {
  KDAConfig c = KDAConfig::preset("toy");
  c.num_v_heads = 8;
  c.head_v_dim = 32;
  c.conv_size = 3;
  c.gate_lower_bound.reset();
  c.full_rank_gate = false;
  c.gate_low_rank = 24;
  c.allow_neg_eigval = true;
  c.chunk = 32;
  c.norm_eps = 3e-6;
  c.initializer_range = 0.013;
  c.tie_embeddings = true;
  c.bos_id = 1;
  c.eos_id = 2;
  c.pad_id = 3;
  c.max_seq_len = 777;
  EXPECT_EQ(KDAConfig::from_json(c.to_json()), c);
  c.gate_lower_bound = -2.5;
  c.pad_id = -1;
  EXPECT_EQ(KDAConfig::from_json(c.to_json()), c);
}

TEST(Config_RoundTrip, FileKeepsPresets) {
  const TemporaryFolder folder;
  for (const std::string& name : KDAConfig::preset_names()) {
    const KDAConfig c = KDAConfig::preset(name);
    model::save_config(c, folder.file(name));
    EXPECT_EQ(model::load_config(folder.file(name)), c) << name;
  }
  error_of([&] { model::load_config(folder.file("absent.json")); }, ErrorCode::kIo);
}

TEST(Config_Strict, UnknownKeyNamesTheNearest) {
  io::Json json = toy_json();
  json["hidden_sise"] = 3;
  const std::string text = refusal(json.dump());
  expect_contains(text, "hidden_sise");
  expect_contains(text, "hidden_size");
  json = toy_json();
  json["linear_attn_config"]["head_dims"] = 3;
  expect_contains(refusal(json.dump()), "linear_attn_config");
  expect_contains(refusal(json.dump()), "head_k_dim");
}

TEST(Config_Strict, EveryRequiredKeyIsMissed) {
  for (const char* key : {"model_type", "vocab_size", "hidden_size", "num_hidden_layers",
                          "intermediate_size", "tie_word_embeddings"}) {
    io::Json json = toy_json();
    json.erase(key);
    expect_contains(refusal(json.dump()), key);
  }
  for (const char* key : {"num_heads", "head_k_dim", "gate_lower_bound", "use_full_rank_gate"}) {
    io::Json json = toy_json();
    json["linear_attn_config"].erase(key);
    expect_contains(refusal(json.dump()), key);
  }
}

TEST(Config_Strict, ForeignModelTypeAndWrongTypesAreRefused) {
  io::Json json = toy_json();
  json["model_type"] = "llama";
  expect_contains(refusal(json.dump()), "llama");
  json = toy_json();
  json["vocab_size"] = "8192";
  expect_contains(refusal(json.dump()), "vocab_size");
  json = toy_json();
  json["tie_word_embeddings"] = 1;
  expect_contains(refusal(json.dump()), "tie_word_embeddings");
}

TEST(Config_Ranges, EachFieldIsChecked) {
  const auto refused = [](const char* field, const std::function<void(KDAConfig&)>& spoil) {
    KDAConfig c = KDAConfig::preset("toy");
    spoil(c);
    expect_contains(error_of([&] { c.validate(); }, ErrorCode::kInvalidArgument), field);
  };
  refused("vocab_size", [](KDAConfig& c) { c.vocab_size = 1; });
  refused("hidden_size", [](KDAConfig& c) { c.hidden_size = 0; });
  refused("num_hidden_layers", [](KDAConfig& c) { c.num_layers = -1; });
  refused("intermediate_size", [](KDAConfig& c) { c.intermediate_size = 0; });
  refused("num_heads", [](KDAConfig& c) { c.num_heads = 0; });
  refused("num_v_heads", [](KDAConfig& c) { c.num_v_heads = 6; });
  refused("head_k_dim", [](KDAConfig& c) { c.head_k_dim = 257; });
  refused("head_v_dim", [](KDAConfig& c) { c.head_v_dim = 0; });
  refused("short_conv_kernel_size", [](KDAConfig& c) { c.conv_size = 5; });
  refused("gate_lower_bound", [](KDAConfig& c) { c.gate_lower_bound = -5.1; });
  refused("gate_lower_bound", [](KDAConfig& c) { c.gate_lower_bound = 0.0; });
  refused("gate_lower_bound", [](KDAConfig& c) { c.gate_lower_bound = std::nan(""); });
  refused("gate_low_rank", [](KDAConfig& c) { c.gate_low_rank = 0; });
  refused("chunk_size", [](KDAConfig& c) { c.chunk = 48; });
  refused("rms_norm_eps", [](KDAConfig& c) { c.norm_eps = 0; });
  refused("rms_norm_eps", [](KDAConfig& c) { c.norm_eps = std::nan(""); });
  refused("initializer_range", [](KDAConfig& c) { c.initializer_range = -0.1; });
  refused("eos_token_id", [](KDAConfig& c) { c.eos_id = c.vocab_size; });
  refused("bos_token_id", [](KDAConfig& c) { c.bos_id = -2; });
  refused("pad_token_id", [](KDAConfig& c) { c.eos_id = c.pad_id = 4; });
  refused("max_position_embeddings", [](KDAConfig& c) { c.max_seq_len = 0; });
}

TEST(Config_Presets, UnknownNameListsTheKnown) {
  const std::string text = error_of([] { KDAConfig::preset("huge"); }, ErrorCode::kInvalidArgument);
  for (const std::string& name : KDAConfig::preset_names())
    expect_contains(text, name);
}

}  // namespace
}  // namespace kda::test
