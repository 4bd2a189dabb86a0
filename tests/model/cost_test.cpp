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

}  // namespace
}  // namespace kda::test
