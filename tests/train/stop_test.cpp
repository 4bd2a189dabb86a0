#include <gtest/gtest.h>

#include <csignal>

#include "kda/error.h"
#include "train/fixture.h"
#include "train/signals.h"
#include "train/trainer.h"

namespace kda::train {
namespace {

namespace fs = std::filesystem;
using testing::error_text;
using testing::RecordingReporter;
using testing::ScratchFolder;
using testing::tiny_request;

TEST(Stop, DuringAnyMicroBatchSavesBeforeTheNext) {
  for (std::int64_t micro : {1, 2, 3}) {
    ScratchFolder folder;
    RecordingReporter reporter;
    TrainRequest request = tiny_request(folder / "run", 50);
    request.options.grad_accum = 3;
    TrainHooks hooks;
    hooks.after_micro_batch = [&](const RunPoint& point) {
      if (point.step == 2 && point.micro == micro) request_stop(SIGTERM);
    };
    const TrainOutcome outcome = train(request, reporter, hooks);
    EXPECT_EQ(outcome.signal_number, SIGTERM);
    EXPECT_EQ(outcome.point, micro == 3 ? (RunPoint{3, 0}) : (RunPoint{2, micro}));
    EXPECT_EQ(last_checkpoint(folder / "run", {})->point, outcome.point);
  }
}

TEST(Stop, BeforeTheFirstStepSavesNothingAndSaysSo) {
  ScratchFolder folder;
  RecordingReporter reporter;
  request_stop(SIGHUP);
  try {
    train(tiny_request(folder / "run", 5), reporter);
    FAIL();
  } catch (const Interrupted& stop) {
    EXPECT_EQ(stop.signal_number(), SIGHUP);
  }
  EXPECT_TRUE(list_checkpoints(folder / "run", false).empty());
}

TEST(Stop, SamplesBeginBeforeTheFirstStep) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = tiny_request(folder / "run", 4);
  request.options.sample_every = {3, PeriodUnit::kUpdates};
  request.options.sample_prompt = {"The"};
  request.options.sample_tokens = 4;
  train(request, reporter);
  std::vector<std::int64_t> steps;
  for (const SampleRecord& sample : reporter.samples)
    steps.push_back(sample.step);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{0, 3, 4}));
}

TEST(Stop, OverfitBatchReachesALowLoss) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = tiny_request(folder / "run", 120);
  request.options.overfit_batch = true;
  request.options.lr = 1e-2;
  train(request, reporter);
  EXPECT_LT(reporter.steps.back().loss, 0.3);
  EXPECT_GT(reporter.steps.front().loss, 5.0);
}

TEST(Stop, Bf16RunLearns) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = tiny_request(folder / "run", 40);
  request.options.dtype = "bf16";
  request.options.lr = 1e-2;
  train(request, reporter);
  EXPECT_LT(reporter.steps.back().loss_ema, reporter.steps.front().loss - 1.0);
}

TEST(Stop, BudgetsInTokensAndEpochsBecomeSteps) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = tiny_request(folder / "a", 0);
  request.options.max_tokens.value = 300;  // 64 tokens per step: 5 steps
  EXPECT_EQ(train(request, reporter).point.step, 5);
  request = tiny_request(folder / "b", 0);
  request.options.epochs.value = 1;
  request.options.batch = 64;
  const TrainOutcome outcome = train(request, reporter);
  EXPECT_GE(reporter.steps.back().epoch, 1.0);
  EXPECT_LT(reporter.steps.back().epoch, 1.0 + 64.0 * 32 / 2000);
  EXPECT_EQ(outcome.point.step, outcome.total_steps);
}

TEST(Stop, ABudgetThatCannotBeCountedIsRefused) {
  ScratchFolder folder;
  RecordingReporter reporter;
  const auto refused = [&](const std::function<void(TrainOptions&)>& change) {
    return error_text(ErrorCode::kInvalidArgument, [&] {
      TrainRequest request = tiny_request(folder / "run", 0);
      change(request.options);
      train(request, reporter);
    });
  };
  EXPECT_NE(refused([](TrainOptions& o) { o.steps.value = 9'000'000'000'000'000; }).find("budget"),
            std::string::npos);
  EXPECT_NE(refused([](TrainOptions& o) { o.epochs.value = 9'000'000'000'000'000; }).find("budget"),
            std::string::npos);
  // 2^64 tokens in one step.
  EXPECT_NE(refused([](TrainOptions& o) {
              o.max_tokens.value = 1;
              o.batch = o.grad_accum = 1 << 20;
              o.seq_len = 1 << 24;
            }).find("budget"),
            std::string::npos);
}

TEST(Stop, ABackendThatIsNotHereIsNotReplaced) {
  ScratchFolder folder;
  RecordingReporter reporter;
  error_text(ErrorCode::kUnsupported, [&] {
    TrainRequest request = tiny_request(folder / "run", 1);
    request.options.backend = "cuda";  // for tensors of the host
    train(request, reporter);
  });
}

TEST(Stop, StopAfterAStepThatIsDoneIsRefused) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = tiny_request(folder / "run", 6);
  request.options.stop_after.value = 4;
  EXPECT_EQ(train(request, reporter).point.step, 4);
  request.resume = ResumeMode::kYes;
  request.given_keys = {"stop_after"};
  const std::string text =
      error_text(ErrorCode::kInvalidArgument, [&] { train(request, reporter); });
  EXPECT_NE(text.find("--stop-after"), std::string::npos) << text;
  request.options.stop_after.value = 5;
  EXPECT_EQ(train(request, reporter).point.step, 5);
}

TEST(Stop, NoHeldOutDataMeansNoEvaluation) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = tiny_request(folder / "run", 3);
  request.options.data = (testing::corpus_folder() / "pretrain.en.txt").string();
  request.options.cache = (folder / "cache").string();
  request.options.heldout_share = 0;
  request.options.eval_every = {1, PeriodUnit::kUpdates};
  const TrainOutcome outcome = train(request, reporter);
  EXPECT_TRUE(reporter.evaluations.empty());
  EXPECT_FALSE(outcome.has_best);
}

}  // namespace
}  // namespace kda::train
