#include "model/cost.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/model_test_support.h"

namespace kda::test {
namespace {

using model::KDAConfig;

TEST(Cost_Parameters, FormulaEqualsTheModel) {
  KDAConfig c = small_config();
  EXPECT_EQ(model::count_parameters(c).total(), make_model(c, DType::kF32).num_parameters());
  c.full_rank_gate = false;
  c.tie_embeddings = false;
  EXPECT_EQ(model::count_parameters(c).total(), make_model(c, DType::kF32).num_parameters());
}

TEST(Cost_Parameters, ToyHasEightMillion) {
  const KDAConfig toy = KDAConfig::preset("toy");
  const double total = static_cast<double>(make_model(toy, DType::kF32).num_parameters());
  EXPECT_NEAR(total, 8e6, 0.01 * 8e6);
  EXPECT_EQ(model::count_parameters(toy).total(), static_cast<std::int64_t>(total));
}

TEST(Cost_Parameters, TinyIsSmall) {
  const std::int64_t total = model::count_parameters(KDAConfig::preset("tiny")).total();
  EXPECT_GT(total, 80'000);
  EXPECT_LT(total, 130'000);
}

TEST(Cost_Flops, HandCountedLayer) {
  KDAConfig c = small_config();
  c.num_layers = 1;
  // d=24: q,k 64, v 64, gate 64, rank 8, beta 4 columns; decay 8 x 128; output 64 x 24; 3 x 24
  // x 40.
  const double weights =
      24.0 * (64 + 64 + 64 + 64 + 8 + 4) + 8.0 * 128 + 64.0 * 24 + 3.0 * 24 * 40 + 61.0 * 24;
  const model::FlopCount flops = model::flops_per_token(c);
  EXPECT_DOUBLE_EQ(flops.matrices, 2 * weights);
  EXPECT_DOUBLE_EQ(flops.recurrence, 6.0 * 4 * 32 * 16);
  EXPECT_DOUBLE_EQ(flops.convolution, 2.0 * 4 * (64 + 64 + 64));
  EXPECT_DOUBLE_EQ(flops.training(), 3 * flops.forward());
}

TEST(Cost_Memory, StateBytesEqualTheState) {
  const KDAConfig c = small_config();
  const auto lm = make_model(c, DType::kF32);
  EXPECT_EQ(3 * model::decode_state_bytes(c), lm.new_state(3).size_bytes());
}

TEST(Cost_Memory, RecomputationAndBf16NeedLess) {
  const KDAConfig toy = KDAConfig::preset("toy");
  model::TrainingShape shape;
  shape.tokens_per_micro_batch = 2048;
  const auto plain = model::estimate_training_memory(toy, shape);
  shape.recompute_blocks = true;
  const auto recomputed = model::estimate_training_memory(toy, shape);
  shape.recompute_blocks = false;
  shape.compute = DType::kBF16;
  const auto narrow = model::estimate_training_memory(toy, shape);
  EXPECT_LT(recomputed.activations_bytes, plain.activations_bytes);
  EXPECT_LT(narrow.activations_bytes, plain.activations_bytes);
  const std::int64_t parameters = model::count_parameters(toy).total();
  EXPECT_EQ(plain.parameters_bytes, 4 * parameters);
  EXPECT_EQ(plain.gradients_bytes, 4 * parameters);
  EXPECT_EQ(plain.optimizer_bytes, 8 * parameters);
  EXPECT_EQ(plain.activations_bytes, 2048 * plain.activation_bytes_per_token);
}

TEST(Cost_Memory, SequencesAddPartlyFilledBlocks) {
  const KDAConfig toy = KDAConfig::preset("toy");
  model::TrainingShape shape;
  shape.tokens_per_micro_batch = 2048;
  const auto kept = [&] { return model::estimate_training_memory(toy, shape).activations_bytes; };
  const std::int64_t full = kept();
  shape.sequences_per_micro_batch = 10;
  constexpr std::int64_t kState = 4 * 64 * 64 * 4;  // heads, K, V, f32
  EXPECT_EQ(kept() - full, 10 * 4 * kState / 2);    // four layers, half a block each
  shape.on_cuda = true;
  EXPECT_EQ(kept() - full, 10 * 4 * kState);
  shape.compute = DType::kBF16;  // on a device the states are as narrow as the activations
  const std::int64_t narrow = kept();
  shape.sequences_per_micro_batch = 0;
  EXPECT_EQ(narrow - kept(), 10 * 4 * kState / 2);
  shape.sequences_per_micro_batch = 10;
  shape.compute = DType::kF32;
  shape.on_cuda = shape.recompute_blocks = true;
  const std::int64_t recomputed = kept();
  shape.sequences_per_micro_batch = 0;
  EXPECT_EQ(recomputed - kept(), 10 * kState);
  // Short ones, on the host: each has a block, instead of one for 64 tokens.
  shape.on_cuda = shape.recompute_blocks = false;
  shape.sequences_per_micro_batch = 100;
  EXPECT_EQ(kept() - full, (100 - 2048 / 64) * 4 * kState);
}

TEST(Cost_K3, HandCountedMlaAndExperts) {
  KDAConfig c = small_k3_config();
  const double before = model::flops_per_token(c).matrices;
  c.num_layers = 6;  // KDA, KDA, KDA, MLA, KDA, MLA: one KDA layer with experts more
  // d=24. KDA as above without its feed-forward layer; router 6, shared 12, 2 experts of 12 in a
  // latent of 16, latent down and up.
  const double kda = 24.0 * (64 + 64 + 64 + 64 + 8 + 4) + 8.0 * 128 + 64.0 * 24;
  const double moe = 24.0 * 6 + 3.0 * 24 * 12 + 2 * 3.0 * 16 * 12 + 2 * 24.0 * 16;
  EXPECT_DOUBLE_EQ(model::flops_per_token(c).matrices - before, 2 * (kda + moe));
  c.full_attn_period = 2;  // KDA, MLA, KDA, MLA, KDA, MLA
  // q 10 x 24 and 36 x 10, latent 20, keys and values 60 x 16, gate and output 36.
  const double mla = 24.0 * 10 + 36.0 * 10 + 24.0 * 20 + 60.0 * 16 + 2 * 36.0 * 24;
  EXPECT_DOUBLE_EQ(model::flops_per_token(c).matrices - before, 2 * (mla + moe));
  EXPECT_DOUBLE_EQ(model::flops_per_token(c).attention_per_key, 3 * 2.0 * 3 * (12 + 12));
  EXPECT_DOUBLE_EQ(model::flops_per_token(c).forward(10) - model::flops_per_token(c).forward(),
                   10 * 3 * 2.0 * 3 * (12 + 12));
}

// What an H200 showed as used (docs/measurements/2026-11-30-translator.md): 16.29 GiB in
// pretraining on 30.5 M tokens in 256,631 documents, 19.70 on 498,036 examples of 25.8 M tokens.
TEST(Cost_K3, TranslatorIsNearWhatItsRunsTook) {
  KDAConfig c = KDAConfig::preset("k3-0.5b");
  c.vocab_size = 16000;
  c.hidden_size = 512;
  c.num_layers = 12;
  c.num_heads = c.num_v_heads = 4;
  c.head_k_dim = c.head_v_dim = 128;
  c.gate_low_rank = 128;
  c.mla.num_heads = 4;
  c.mla.kv_lora_rank = c.mla.qk_nope_head_dim = c.mla.v_head_dim = 128;
  c.moe.intermediate_size = 384;
  c.moe.latent_size = 256;
  ASSERT_NEAR(static_cast<double>(model::count_parameters(c).total()), 98.2e6, 0.1e6);
  model::TrainingShape shape;
  shape.tokens_per_micro_batch = 128 * 256;
  shape.compute = DType::kBF16;
  shape.on_cuda = true;
  const auto gib = [&] {
    const auto total = model::estimate_training_memory(c, shape).total_bytes();
    return static_cast<double>(total + model::kCudaContextBytes) / (1 << 30);
  };
  shape.sequences_per_micro_batch = 128 + 128 * 256 * 256631LL / 30500000;
  EXPECT_NEAR(gib(), 16.29, 0.08 * 16.29);
  shape.sequences_per_micro_batch = 128 * 256 * 498036LL / 25780000;
  shape.sizes_vary = true;
  EXPECT_NEAR(gib(), 19.70, 0.05 * 19.70);
}

TEST(Cost_K3, ActiveParametersLeaveUnusedExpertsOut) {
  const model::ParameterCount count = model::count_parameters(small_k3_config());
  EXPECT_EQ(count.total() - count.active(), 4 * 4 * 3 * 16 * 12);  // layers, experts, weights
}

TEST(Cost_K3, StateBytesGrowWithMlaLayersOnly) {
  const KDAConfig c = small_k3_config();
  const auto lm = make_model(c, DType::kF32);
  EXPECT_EQ(2 * model::decode_state_bytes(c), lm.new_state(2).size_bytes());
  EXPECT_EQ(model::decode_state_bytes(c, 100) - model::decode_state_bytes(c), 100 * 2 * 20 * 4);
}

TEST(Cost_K3, RecomputationKeepsInputsOnly) {
  model::TrainingShape shape;
  shape.tokens_per_micro_batch = 4096;
  shape.compute = DType::kBF16;
  for (const auto mode :
       {model::AttnResMode::kOff, model::AttnResMode::kBlock, model::AttnResMode::kFull}) {
    KDAConfig c = KDAConfig::preset("k3-0.5b");
    c.attn_res.mode = mode;
    shape.recompute_blocks = false;
    const auto kept = model::estimate_training_memory(c, shape);
    shape.recompute_blocks = true;
    const auto recomputed = model::estimate_training_memory(c, shape);
    EXPECT_GT(kept.activations_bytes, 5 * recomputed.activations_bytes);
    EXPECT_EQ(kept.parameters_bytes, 4 * model::count_parameters(c).total());
  }
}

}  // namespace
}  // namespace kda::test
