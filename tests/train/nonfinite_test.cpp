#include <gtest/gtest.h>

#include "kda/error.h"
#include "train/adamw.h"
#include "train/checkpoint.h"
#include "train/fixture.h"
#include "train/trainer.h"

namespace kda::train {
namespace {

namespace fs = std::filesystem;
using testing::error_text;
using testing::RecordingReporter;
using testing::ScratchFolder;
using testing::tiny_request;

/// Every checkpoint of a run is sound and all its weights are finite.
void expect_only_finite_checkpoints(const fs::path& run) {
  for (const CheckpointFolder& folder : list_checkpoints(run, true)) {
    EXPECT_TRUE(folder.faults.empty());
    model::CausalLM model(model::load_config((folder.path / "config.json").string()), {});
    AdamW optimizer(model.parameters(), {});
    restore_tensors(folder.path, read_trainer_file(folder.path), model, optimizer);
    EXPECT_EQ(first_nonfinite_parameter(model.parameters()), "") << folder.path;
  }
}

TEST(NonFinite, PoisonedStepStopsNamingStepLayerAndCheckpoint) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = tiny_request(folder / "run", 10);
  request.options.save_every = {5, PeriodUnit::kUpdates};
  request.options.poison_step.value = 7;
  const std::string text = error_text(ErrorCode::kNonFinite, [&] { train(request, reporter); });
  EXPECT_NE(text.find("step 7"), std::string::npos) << text;
  EXPECT_NE(text.find("layers.1."), std::string::npos) << text;
  EXPECT_NE(text.find("step-000005"), std::string::npos) << text;
  EXPECT_EQ(reporter.steps.size(), 6u);
  EXPECT_EQ(last_checkpoint(folder / "run", {})->point, (RunPoint{5, 0}));
  expect_only_finite_checkpoints(folder / "run");

  // And the run can go on from there.
  TrainRequest more;
  more.options.out = request.options.out;
  more.resume = ResumeMode::kYes;
  EXPECT_EQ(train(more, reporter).point.step, 10);
}

TEST(NonFinite, BeforeAnyCheckpointSaysSo) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = tiny_request(folder / "run", 10);
  request.options.poison_step.value = 1;
  const std::string text = error_text(ErrorCode::kNonFinite, [&] { train(request, reporter); });
  EXPECT_NE(text.find("no checkpoint yet"), std::string::npos) << text;
  EXPECT_TRUE(list_checkpoints(folder / "run", false).empty());
}

TEST(NonFinite, SkipLeavesTheStepOutAndCounts) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = tiny_request(folder / "run", 10);
  request.options.poison_step.value = 4;
  request.options.on_nonfinite.skips_allowed = 3;
  const TrainOutcome outcome = train(request, reporter);
  EXPECT_EQ(outcome.point.step, 10);
  EXPECT_EQ(outcome.skipped, 1);
  ASSERT_EQ(reporter.steps.size(), 10u);
  EXPECT_TRUE(reporter.steps[3].skipped);
  EXPECT_NE(reporter.steps[3].why_skipped.find("skip 1 of 3"), std::string::npos);
  EXPECT_FALSE(reporter.steps[4].skipped);
  const TrainerState state = read_trainer_file(outcome.last_checkpoint).state;
  EXPECT_EQ(state.updates, 9);
  EXPECT_EQ(state.skipped, 1);
  EXPECT_EQ(state.loss_stats.state().window.size(), 9u);  // statistics leave it out too
  expect_only_finite_checkpoints(folder / "run");
}

TEST(NonFinite, ARunThatFliesApartNeverSavesNan) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = tiny_request(folder / "run", 30);
  request.options.lr = 1e5;
  request.options.warmup.value = 0;
  request.given_keys.insert("warmup");
  request.options.weight_decay = 0;
  request.options.clip = 0;
  request.options.save_every = {1, PeriodUnit::kUpdates};
  request.options.eval_every = {1, PeriodUnit::kUpdates};
  const std::string text = error_text(ErrorCode::kNonFinite, [&] { train(request, reporter); });
  EXPECT_NE(text.find("step "), std::string::npos) << text;
  expect_only_finite_checkpoints(folder / "run");
}

TEST(NonFinite, SkipsThatRunOutStop) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = tiny_request(folder / "run", 30);
  request.options.lr = 1e5;
  request.options.warmup.value = 0;
  request.given_keys.insert("warmup");
  request.options.weight_decay = 0;
  request.options.clip = 0;
  request.options.on_nonfinite.skips_allowed = 2;
  const std::string text = error_text(ErrorCode::kNonFinite, [&] { train(request, reporter); });
  EXPECT_NE(text.find("2 of 2 allowed skips are used up"), std::string::npos) << text;
}

TEST(NonFinite, NonFiniteWeightIsNotSaved) {
  ScratchFolder folder;
  model::KDAConfig config = model::KDAConfig::preset("tiny");
  model::CausalLM model(config, {});
  AdamW optimizer(model.parameters(), {});
  model.parameters()[3].tensor.detach().view(-1)[1] = std::numeric_limits<float>::infinity();
  const std::string text = error_text(ErrorCode::kNonFinite, [&] {
    save_checkpoint(folder.path(), model, optimizer, testing::tokenizer(), {});
  });
  EXPECT_NE(text.find(model.parameters()[3].name), std::string::npos) << text;
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace kda::train
