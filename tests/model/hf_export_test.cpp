// Weight files and configs in the form of released checkpoints.
#include "model/hf_export.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "io/safetensors.h"
#include "model/config_hf.h"
#include "model/model_test_support.h"
#include "model/weight_file.h"

namespace kda::test {
namespace {

using model::CausalLM;
using model::KDAConfig;

// A K3 model that the released form can hold.
KDAConfig k3_config() {
  KDAConfig c = KDAConfig::preset("k3-tiny");
  c.num_v_heads = c.num_heads;
  c.head_v_dim = c.head_k_dim;
  c.gate_low_rank = c.head_k_dim;
  c.mla.num_heads = c.num_heads;
  c.attn_res.mode = model::AttnResMode::kBlock;
  c.attn_res.block_size = 2;
  return c;
}

KDAConfig linear_config() {
  KDAConfig c = k3_config();
  c.gate_lower_bound.reset();
  c.full_rank_gate = false;
  c.mla.output_gate = false;
  c.mla.q_lora_rank = 0;
  c.activation = {};
  c.attn_res = {};
  c.moe.latent_size = 0;
  c.moe.latent_norm = false;
  c.moe.weights_include_bias = true;
  return c;
}

CausalLM spread_model(const KDAConfig& config) {
  CausalLM lm = make_model(config, DType::kF32, 3);
  spread_weights(lm, 200);
  for (const model::Parameter& buffer : lm.buffers())
    at::Tensor(buffer.tensor).copy_(random_tensor(buffer.tensor.sizes(), 300) * 0.3);
  return lm;
}

void expect_equal_models(const CausalLM& a, const CausalLM& b) {
  const auto left = a.parameters();
  const auto right = b.parameters();
  ASSERT_EQ(left.size(), right.size());
  for (std::size_t i = 0; i < left.size(); ++i)
    EXPECT_TRUE(same_bits(left[i].tensor, right[i].tensor)) << left[i].name;
  const auto more = a.buffers();
  ASSERT_EQ(more.size(), b.buffers().size());
  ASSERT_FALSE(more.empty());
  for (std::size_t i = 0; i < more.size(); ++i)
    EXPECT_TRUE(same_bits(more[i].tensor, b.buffers()[i].tensor)) << more[i].name;
  const auto batch = model::pack({random_ids(40, a.config().vocab_size, 7)});
  EXPECT_TRUE(same_bits(a.logits(batch), b.logits(batch)));
}

TEST(HfConfig_RoundTrip, KeepsTheModel) {
  for (const bool k3 : {true, false}) {
    const KDAConfig c = k3 ? k3_config() : linear_config();
    const io::Json json = model::config_to_hf(c);
    EXPECT_EQ(json["model_type"], k3 ? "kimi_k3" : "kimi_linear");
    KDAConfig back = model::config_from_hf(json);
    // The layers are listed there, and the chunk length is no part of the format.
    EXPECT_EQ(back.num_mla_layers(), c.num_mla_layers());
    for (std::int64_t i = 0; i < c.num_layers; ++i)
      EXPECT_EQ(back.is_mla(i), c.is_mla(i));
    back.full_attn_layers = c.full_attn_layers;
    back.full_attn_period = c.full_attn_period;
    back.chunk = c.chunk;
    EXPECT_EQ(back, c);
  }
}

TEST(HfConfig_RoundTrip, KeepsAnUncappedBranch) {
  KDAConfig c = k3_config();
  c.activation.situ_linear_beta = 0.0;
  const io::Json json = model::config_to_hf(c);
  EXPECT_TRUE(json["text_config"]["activation_situ_linear_beta"].is_null());
  EXPECT_EQ(model::config_from_hf(json).activation, c.activation);
}

TEST(HfConfig_Refusals, NameTheField) {
  const auto refused = [](const std::function<void(KDAConfig&)>& change) {
    KDAConfig c = k3_config();
    change(c);
    return error_of([&] { model::config_to_hf(c); }, ErrorCode::kUnsupported);
  };
  expect_contains(refused([](KDAConfig& c) { c.num_v_heads = 2 * c.num_heads; }), "num_v_heads");
  expect_contains(refused([](KDAConfig& c) { c.head_v_dim = 2 * c.head_k_dim; }), "head_v_dim");
  expect_contains(refused([](KDAConfig& c) { c.gate_low_rank = 3; }), "gate_low_rank");
  expect_contains(refused([](KDAConfig& c) { c.allow_neg_eigval = true; }), "allow_neg_eigval");
  expect_contains(refused([](KDAConfig& c) { c.mla.latent_norm_eps = 1e-5; }), "latent_norm_eps");
  expect_contains(refused([](KDAConfig& c) { c.moe.weights_include_bias = true; }),
                  "weights_include_bias");
  expect_contains(refused([](KDAConfig& c) {
                    c.attn_res = {model::AttnResMode::kFull, 0};
                  }),
                  "attn_res");
  expect_contains(
      error_of([] { model::config_to_hf(KDAConfig::preset("toy")); }, ErrorCode::kUnsupported),
      "MLA");
}

TEST(HfExport_RoundTrip, IsBitForBit) {
  for (const bool k3 : {true, false}) {
    const TemporaryFolder folder;
    const CausalLM lm = spread_model(k3 ? k3_config() : linear_config());
    const auto files =
        model::export_hf(lm, folder.file("hf"), {model::StoredType::kF32, k3 ? 20'000 : 0});
    EXPECT_EQ(files.size() > 3, k3);  // K3 here in shards, with an index
    std::vector<std::string> warnings;
    const CausalLM back = model::load_model(folder.file("hf"), {}, &warnings);
    EXPECT_TRUE(warnings.empty());
    expect_equal_models(lm, back);
  }
}

TEST(HfExport_Names, ExpertsStandAlone) {
  const TemporaryFolder folder;
  const KDAConfig c = k3_config();
  model::export_hf(spread_model(c), folder.file("hf"));
  const auto file = io::SafetensorsFile::open(folder.file("hf/model.safetensors"));
  const std::string layer =
      "language_model.model.layers." + std::to_string(c.first_dense_layers) + ".block_sparse_moe.";
  using Shape = std::vector<std::int64_t>;
  const std::int64_t width = c.moe.expert_input(c.hidden_size);
  EXPECT_EQ(file.info(layer + "experts.0.w1.weight").shape,
            (Shape{c.moe.intermediate_size, width}));
  EXPECT_EQ(file.info(layer + "experts.1.w2.weight").shape,
            (Shape{width, c.moe.intermediate_size}));
  EXPECT_EQ(file.info(layer + "experts.1.w3.weight").dtype, io::StDtype::kBF16);
  EXPECT_EQ(file.info(layer + "gate.e_score_correction_bias").dtype, io::StDtype::kF32);
  const auto& a_log = file.info("language_model.model.layers.0.self_attn.A_log");
  EXPECT_EQ(a_log.shape, (Shape{128}));
  EXPECT_EQ(a_log.dtype, io::StDtype::kF32);
  EXPECT_EQ(file.info("language_model.model.layers.0.self_attn.q_conv1d.weight").dtype,
            io::StDtype::kF32);
  for (const std::string& name : file.names())
    EXPECT_EQ(name.find("gate_up_proj"), std::string::npos) << name;
}

TEST(HfExport_Shards, StayUnderTheLimit) {
  const TemporaryFolder folder;
  const CausalLM lm = spread_model(linear_config());
  constexpr std::int64_t kLimit = 30'000;
  model::export_hf(lm, folder.file("hf"), {model::StoredType::kBF16, kLimit});
  const auto set = io::SafetensorsSet::open(folder.file("hf"));
  EXPECT_GT(set.files().size(), 3U);
  std::set<std::string> names;
  for (const auto& file : set.files()) {
    std::size_t bytes = 0;
    for (const std::string& name : file.names()) {
      bytes += file.info(name).data.size();
      EXPECT_TRUE(names.insert(name).second);
    }
    EXPECT_TRUE(bytes <= kLimit || file.names().size() == 1) << file.what();
  }
  expect_contains(error_of(
                      [&] {
                        model::export_hf(lm, folder.file("no"), {{}, -1});
                      },
                      ErrorCode::kInvalidArgument),
                  "max_shard_bytes");
}

TEST(Weights_Experts, OwnFormIsStackedAndHoldsTheBias) {
  const TemporaryFolder folder;
  const KDAConfig c = k3_config();
  const CausalLM lm = spread_model(c);
  model::save_model(lm, folder.file("m"));
  const model::WeightFile file = model::WeightFile::open(folder.file("m"));
  const std::string layer =
      "model.layers." + std::to_string(c.first_dense_layers) + ".block_sparse_moe.";
  EXPECT_TRUE(file.contains(layer + "experts.gate_up_proj"));
  EXPECT_TRUE(file.contains(layer + "gate.e_score_correction_bias"));
  expect_equal_models(lm, model::load_model(folder.file("m"), {}));
}

}  // namespace
}  // namespace kda::test
