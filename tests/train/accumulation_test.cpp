#include "train/accumulation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "train/adamw.h"
#include "train/evaluate.h"
#include "train/fixture.h"

namespace kda::train {
namespace {

using testing::ScratchFolder;

constexpr std::int64_t kRows = 60;
constexpr std::int64_t kTokens = 8;

/// Rows begin .. begin + count of a fixed set of 60, whose rows have from 0 to 6 targets each.
text::PackedBatch rows(std::int64_t begin, std::int64_t count, std::int64_t vocab) {
  text::PackedBatch batch;
  batch.rows = count;
  batch.seq_len = kTokens;
  for (std::int64_t r = begin; r < begin + count; ++r) {
    batch.cu_seqlens.push_back((r - begin) * kTokens);
    const std::int64_t num_targets = r % 7;  // 0 to 6: no two cuts have equal counts
    for (std::int64_t t = 0; t < kTokens; ++t) {
      batch.inputs.push_back((r * 31 + t * 17 + 3) % vocab);
      const bool counts = t < num_targets;
      batch.targets.push_back(counts ? (r * 13 + t * 5 + 1) % vocab : text::kIgnoreIndex);
      batch.num_targets += counts;
    }
  }
  batch.cu_seqlens.push_back(count * kTokens);
  return batch;
}

struct StepResult {
  double loss = 0;
  double norm = 0;
  std::vector<at::Tensor> gradient;  ///< of the mean over all targets
  std::vector<at::Tensor> change;
};

/// One optimizer step on the 60 rows, cut into micro-batches of `size` rows (the last is smaller).
StepResult step_in(std::int64_t size) {
  const model::KDAConfig config = model::KDAConfig::preset("tiny");
  model::ModelOptions options;
  options.seed = 5;
  const model::CausalLM model(config, options);
  AdamW optimizer(model.parameters(), {});
  StepResult result;
  for (const model::Parameter& p : model.parameters()) {
    result.change.push_back(p.tensor.detach().clone());
  }
  AccumulationWindow window;
  const std::int64_t reference = size * kTokens;
  for (std::int64_t begin = 0; begin < kRows; begin += size) {
    const BatchTensors batch =
        to_tensors(rows(begin, std::min(size, kRows - begin), config.vocab_size));
    const model::LossOutput loss = model.loss(batch.packed, batch.targets);
    window.add(loss, reference);
  }
  EXPECT_FALSE(window.settle());
  const double scale = window.gradient_scale(reference);
  result.loss = window.mean_loss();
  result.norm = optimizer.gradient_stats().norm * scale;
  for (const model::Parameter& p : model.parameters()) {
    result.gradient.push_back(p.tensor.grad().mul(scale));
  }
  // Adam's first step moves every element by lr, whatever the size of its gradient: rounding of a
  // gradient near zero shows as a share of lr, a wrong weighting as whole lr's.
  optimizer.step(3e-5, scale);
  for (std::size_t i = 0; i < result.change.size(); ++i) {
    result.change[i] = model.parameters()[i].tensor.detach().sub(result.change[i]);
  }
  return result;
}

double largest_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, a[i].sub(b[i]).abs().max().item<double>());
  }
  return worst;
}

TEST(Accumulation, AnyCutIntoMicroBatchesGivesTheSameStep) {
  const StepResult whole = step_in(60);
  double largest_gradient = 0;
  for (const at::Tensor& g : whole.gradient) {
    largest_gradient = std::max(largest_gradient, g.abs().max().item<double>());
  }
  for (std::int64_t size : {1, 6, 9}) {
    SCOPED_TRACE(size);
    const StepResult cut = step_in(size);
    EXPECT_NEAR(cut.loss, whole.loss, 1e-6 * whole.loss);
    EXPECT_NEAR(cut.norm, whole.norm, 1e-5 * whole.norm);
    EXPECT_LT(largest_difference(cut.gradient, whole.gradient), 1e-5 * largest_gradient);
    EXPECT_LT(largest_difference(cut.change, whole.change), 1e-6);
  }
}

TEST(Accumulation, MeanOfMeansWouldBeAnotherNumber) {
  // Guards the test above: with equal shares of the targets it could not fail.
  for (std::int64_t size : {6, 9}) {
    const std::int64_t first = rows(0, size, 256).num_targets;
    const std::int64_t second = rows(size, size, 256).num_targets;
    EXPECT_NE(first, second) << size;
  }
}

TEST(Accumulation, MicroBatchWithoutTargetsAddsNothing) {
  const model::KDAConfig config = model::KDAConfig::preset("tiny");
  const model::CausalLM model(config, {});
  AccumulationWindow window;
  text::PackedBatch batch = rows(0, 3, config.vocab_size);
  std::fill(batch.targets.begin(), batch.targets.end(), text::kIgnoreIndex);
  const BatchTensors tensors = to_tensors(batch);
  const model::LossOutput loss = model.loss(tensors.packed, tensors.targets);
  window.add(loss, 24);
  EXPECT_FALSE(window.settle());
  EXPECT_EQ(window.targets, 0);
  EXPECT_EQ(window.loss_sum, 0.0);
}

TEST(Accumulation, SettleNamesTheFirstLossThatIsNotFinite) {
  AccumulationWindow window;
  const auto lone = [](double value) {
    return model::LossOutput{at::full({}, value, at::kFloat).set_requires_grad(true), 1};
  };
  for (const double value : {2.0, 3.0, std::nan(""), 1.0, HUGE_VAL}) {
    const model::LossOutput loss = lone(value);
    window.add({loss.loss_sum * 1.0, 1}, 4);
  }
  EXPECT_EQ(window.targets, 5);
  EXPECT_EQ(window.settle(), std::optional<std::size_t>(2));
  EXPECT_FALSE(window.settle());  // once
  EXPECT_TRUE(std::isnan(window.loss_sum));
}

TEST(Accumulation, TrainerTakesTheSameStepHoweverTheBatchIsCut) {
  // 12 rows per step from the real stream, as 1 x 12, 3 x 4 and 12 x 1.
  std::vector<std::vector<StepRecord>> runs;
  for (std::int64_t batch : {12, 3, 1}) {
    ScratchFolder folder;
    TrainRequest request = testing::tiny_request(folder / "run", 3);
    request.options.batch = batch;
    request.options.grad_accum = 12 / batch;
    testing::RecordingReporter reporter;
    train(request, reporter);
    runs.push_back(reporter.steps);
  }
  for (std::size_t r = 1; r < runs.size(); ++r) {
    ASSERT_EQ(runs[r].size(), runs[0].size());
    for (std::size_t s = 0; s < runs[0].size(); ++s) {
      EXPECT_NEAR(runs[r][s].loss, runs[0][s].loss, 2e-5 * runs[0][s].loss);
      EXPECT_NEAR(runs[r][s].grad_norm, runs[0][s].grad_norm, 1e-3 * runs[0][s].grad_norm);
      EXPECT_EQ(runs[r][s].tokens, runs[0][s].tokens);
    }
  }
}

}  // namespace
}  // namespace kda::train
