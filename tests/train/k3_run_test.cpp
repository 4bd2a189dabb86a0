/// Runs of the K3-like model: what its experts and MLA layers add to resuming.
#include <gtest/gtest.h>

#include <csignal>

#include "kda/error.h"
#include "train/checkpoint.h"
#include "train/fixture.h"
#include "train/signals.h"
#include "train/trainer.h"

namespace kda::train {
namespace {

namespace fs = std::filesystem;
using testing::RecordingReporter;
using testing::ScratchFolder;
using testing::tensor_hashes;

TrainRequest k3_request(const fs::path& out, const std::string& optimizer) {
  TrainRequest request = testing::tiny_request(out, 8);
  TrainOptions& o = request.options;
  o.preset = "k3-tiny";
  o.attnres = "block";
  o.optimizer = optimizer;
  o.grad_accum = 2;
  o.batch = 1;
  o.eval_every = {4, PeriodUnit::kUpdates};
  return request;
}

/// Stopped between steps and inside windows, and continued: the bytes of one run, selection biases
/// of the experts among them.
TEST(K3Run, ResumeEqualsTheUninterruptedRun) {
  for (const char* optimizer : {"adamw", "muon"}) {
    SCOPED_TRACE(optimizer);
    ScratchFolder folder;
    RecordingReporter reporter;
    train(k3_request(folder / "one", optimizer), reporter);
    EXPECT_TRUE(reporter.steps.back().moe_max_load.has_value());
    for (const RunPoint stop : {RunPoint{2, 1}, RunPoint{5, 1}}) {
      TrainRequest request = k3_request(folder / "two", optimizer);
      request.resume = ResumeMode::kIfPresent;
      TrainHooks hooks;
      hooks.after_micro_batch = [&](const RunPoint& point) {
        if (point == stop) request_stop(SIGTERM);
      };
      const TrainOutcome outcome = train(request, reporter, hooks);
      clear_stop();
      // What routers saw of an open window is not saved: the run goes back to its beginning.
      EXPECT_EQ(outcome.point, (RunPoint{stop.step, 0}));
    }
    TrainRequest rest = k3_request(folder / "two", optimizer);
    rest.resume = ResumeMode::kYes;
    EXPECT_EQ(train(rest, reporter).point.step, 8);
    EXPECT_EQ(tensor_hashes(folder / "one/step-000008"), tensor_hashes(folder / "two/step-000008"));
    EXPECT_EQ(testing::loss_lines(folder / "one"), testing::loss_lines(folder / "two"));
  }
}

TEST(K3Run, LearnsOneBatchWithEitherOptimizer) {
  for (const char* optimizer : {"adamw", "muon"}) {
    SCOPED_TRACE(optimizer);
    ScratchFolder folder;
    RecordingReporter reporter;
    TrainRequest request = k3_request(folder / "run", optimizer);
    request.options.steps.value = 60;
    request.options.overfit_batch = true;
    request.options.grad_accum = 1;
    request.options.lr = 1e-2;
    request.options.eval_every = {};
    train(request, reporter);
    EXPECT_GT(reporter.steps.front().loss, 5.0);
    EXPECT_LT(reporter.steps.back().loss, 2.0);
  }
}

TEST(K3Run, AttnresFlagsReachTheModel) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = k3_request(folder / "run", "adamw");
  request.options.attnres_block_size = 2;
  request.options.steps.value = 1;
  const TrainOutcome outcome = train(request, reporter);
  const model::KDAConfig config =
      model::load_config((outcome.last_checkpoint / "config.json").string());
  EXPECT_EQ(config.attn_res.mode, model::AttnResMode::kBlock);
  EXPECT_EQ(config.attn_res.block_size, 2);
}

}  // namespace
}  // namespace kda::train
