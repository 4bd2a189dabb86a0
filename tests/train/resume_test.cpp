#include <gtest/gtest.h>

#include <csignal>
#include <fstream>

#include "io/atomic_file.h"
#include "io/jsonl_log.h"
#include "kda/error.h"
#include "support/allocated.h"
#include "text/tokenizer_trainer.h"
#include "train/adamw.h"
#include "train/checkpoint.h"
#include "train/fixture.h"
#include "train/signals.h"
#include "train/trainer.h"

namespace kda::train {
namespace {

namespace fs = std::filesystem;
using testing::error_text;
using testing::loss_lines;
using testing::RecordingReporter;
using testing::ScratchFolder;
using testing::tensor_hashes;
using testing::tiny_request;

constexpr std::int64_t kSteps = 40;

/// Everything on: accumulation, evaluation, samples, checkpoints between.
TrainRequest full_request(const fs::path& out) {
  TrainRequest request = tiny_request(out, kSteps);
  TrainOptions& o = request.options;
  o.grad_accum = 3;
  o.batch = 1;
  o.eval_every = {10, PeriodUnit::kUpdates};
  o.sample_every = {20, PeriodUnit::kUpdates};
  o.sample_prompt = {"小猫", "the clerk"};
  o.sample_tokens = 12;
  o.save_every = {10, PeriodUnit::kUpdates};
  return request;
}

struct Straight {
  std::map<std::string, std::string> hashes;
  std::vector<std::string> lines;
};

/// The uninterrupted run that all others must equal.
const Straight& straight() {
  static const Straight run = [] {
    ScratchFolder folder;
    RecordingReporter reporter;
    train(full_request(folder / "run"), reporter);
    return Straight{tensor_hashes(folder / "run/step-000040"), loss_lines(folder / "run")};
  }();
  return run;
}

TrainRequest continued(const fs::path& out) {
  TrainRequest request;
  request.options.out = out.string();
  request.resume = ResumeMode::kYes;
  return request;
}

void expect_equal_to_straight(const fs::path& run) {
  EXPECT_EQ(tensor_hashes(run / "step-000040"), straight().hashes);
  const std::vector<std::string> lines = loss_lines(run);
  ASSERT_EQ(lines.size(), straight().lines.size());
  for (std::size_t i = 0; i < lines.size(); ++i)
    EXPECT_EQ(lines[i], straight().lines[i]);
}

TEST(Resume, TwentyAndTwentyEqualsForty) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = full_request(folder / "run");
  request.options.stop_after.value = 20;
  const TrainOutcome first = train(request, reporter);
  EXPECT_TRUE(first.stopped_early);
  EXPECT_EQ(first.point, (RunPoint{20, 0}));
  const TrainOutcome second = train(continued(folder / "run"), reporter);
  EXPECT_FALSE(second.stopped_early);
  expect_equal_to_straight(folder / "run");
}

TEST(Resume, AfterStepOneAndInEveryStepFromThere) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = full_request(folder / "run");
  request.options.stop_after.value = 1;
  train(request, reporter);
  for (std::int64_t stop : {2, 3, 10, 11, 39}) {
    TrainRequest more = continued(folder / "run");
    more.options.stop_after.value = stop;
    more.given_keys = {"stop_after"};
    EXPECT_EQ(train(more, reporter).point.step, stop);
  }
  train(continued(folder / "run"), reporter);
  expect_equal_to_straight(folder / "run");
}

TEST(Resume, InTheMiddleOfAnAccumulationWindow) {
  ScratchFolder folder;
  RecordingReporter reporter;
  for (const RunPoint stop : {RunPoint{0, 1}, RunPoint{7, 2}, RunPoint{20, 1}}) {
    TrainRequest request =
        stop.step == 0 ? full_request(folder / "run") : continued(folder / "run");
    TrainHooks hooks;
    hooks.after_micro_batch = [&](const RunPoint& point) {
      if (point == stop) request_stop(SIGTERM);
    };
    const TrainOutcome outcome = train(request, reporter, hooks);
    clear_stop();
    EXPECT_EQ(outcome.signal_number, SIGTERM);
    EXPECT_EQ(outcome.point, stop);
    EXPECT_EQ(outcome.last_checkpoint.filename(), folder_name(stop));
  }
  train(continued(folder / "run"), reporter);
  expect_equal_to_straight(folder / "run");
}

/// Asks for a stop when a certain record arrives.
class StoppingReporter : public RecordingReporter {
 public:
  void progress(const ProgressRecord& record) override {
    if (stop_in_evaluation && record.phase == "evaluating") request_stop(SIGINT);
  }
  void sample(const SampleRecord& record) override {
    RecordingReporter::sample(record);
    if (stop_after_sample) request_stop(SIGINT);
  }
  bool stop_in_evaluation = false;
  bool stop_after_sample = false;
};

TEST(Resume, StoppedInsideAnEvaluation) {
  ScratchFolder folder;
  StoppingReporter reporter;
  reporter.stop_in_evaluation = true;
  const TrainOutcome outcome = train(full_request(folder / "run"), reporter);
  clear_stop();
  EXPECT_EQ(outcome.signal_number, SIGINT);
  EXPECT_EQ(outcome.point, (RunPoint{10, 0}));
  EXPECT_TRUE(read_trainer_file(outcome.last_checkpoint).state.eval_pending);
  RecordingReporter quiet;
  train(continued(folder / "run"), quiet);
  ASSERT_FALSE(quiet.evaluations.empty());
  EXPECT_EQ(quiet.evaluations[0].step, 10);
  expect_equal_to_straight(folder / "run");
}

TEST(Resume, BrokenNewestCheckpointFallsBackWithAMessage) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = full_request(folder / "run");
  request.options.stop_after.value = 30;
  train(request, reporter);
  const fs::path newest = folder / "run/step-000030/optimizer.safetensors";
  fs::resize_file(newest, fs::file_size(newest) - 1);
  RecordingReporter second;
  train(continued(folder / "run"), second);
  ASSERT_FALSE(second.warnings.empty());
  EXPECT_NE(second.warnings[0].find("step-000030"), std::string::npos) << second.warnings[0];
  EXPECT_EQ(second.steps.front().step, 21);
  expect_equal_to_straight(folder / "run");
}

TEST(Resume, MetricsAreContinuedWithoutDuplicatesAfterACrash) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = full_request(folder / "run");
  request.options.stop_after.value = 25;
  train(request, reporter);
  // A crash after step 25 whose checkpoint never came to be, and a torn last line.
  fs::remove_all(folder / "run/step-000025");
  std::ofstream(folder / "run/metrics.jsonl", std::ios::app) << "{\"kind\":\"step\",\"st";
  train(continued(folder / "run"), reporter);
  expect_equal_to_straight(folder / "run");
}

TEST(Resume, OtherThreadCountIsAllowed) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = full_request(folder / "run");
  request.options.stop_after.value = 20;
  train(request, reporter);
  TrainRequest more = continued(folder / "run");
  more.options.threads = 2;
  more.given_keys = {"threads"};
  const TrainOutcome outcome = train(more, reporter);
  EXPECT_EQ(outcome.point.step, kSteps);  // the same run; bits may differ, see docs/training.md
}

TEST(Resume, LongerBudgetGoesOn) {
  ScratchFolder folder;
  RecordingReporter reporter;
  train(tiny_request(folder / "run", 3), reporter);
  const std::string text =
      error_text(ErrorCode::kInvalidArgument, [&] { train(continued(folder / "run"), reporter); });
  EXPECT_NE(text.find("3 of 3"), std::string::npos) << text;
  TrainRequest more = continued(folder / "run");
  more.options.steps.value = 5;
  more.given_keys = {"steps"};
  EXPECT_EQ(train(more, reporter).point.step, 5);
}

TEST(Resume, RefusesAnotherConfigurationNamingBoth) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = tiny_request(folder / "run", 4);
  request.options.stop_after.value = 2;
  train(request, reporter);
  TrainRequest other = continued(folder / "run");
  other.options.preset = "toy";
  other.given_keys = {"preset"};
  std::string text = error_text(ErrorCode::kInvalidArgument, [&] { train(other, reporter); });
  EXPECT_NE(text.find("'tiny'"), std::string::npos) << text;
  EXPECT_NE(text.find("'toy'"), std::string::npos) << text;
  other.options.seq_len = 64;
  other.given_keys = {"seq_len"};
  text = error_text(ErrorCode::kInvalidArgument, [&] { train(other, reporter); });
  EXPECT_NE(text.find("'32'"), std::string::npos) << text;
  EXPECT_NE(text.find("'64'"), std::string::npos) << text;
}

TEST(Resume, RefusesAnotherTokenizerNamingBoth) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = tiny_request(folder / "run", 4);
  request.options.stop_after.value = 2;
  train(request, reporter);
  text::TokenizerTrainOptions options;
  options.vocab_size = 350;
  const text::TokenizerTrainResult trained = text::train_tokenizer(
      [](const std::function<void(std::string_view)>& sink) {
        for (const std::string& text : testing::documents(60))
          sink(text);
      },
      options);
  testing::write_text(folder / "other.model", trained.model_bytes);
  TrainRequest other = continued(folder / "run");
  other.options.tokenizer = (folder / "other.model").string();
  other.given_keys = {"tokenizer"};
  const std::string text = error_text(ErrorCode::kInvalidArgument, [&] { train(other, reporter); });
  const auto hash = [](const fs::path& path) {
    return io::to_hex(text::Tokenizer::load(path).info().sha256).substr(0, 16);
  };
  EXPECT_NE(text.find(hash(testing::tokenizer_file())), std::string::npos) << text;
  EXPECT_NE(text.find(hash(folder / "other.model")), std::string::npos) << text;
  EXPECT_NE(text.find("350"), std::string::npos) << text;
}

TEST(Resume, RefusesOtherData) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = tiny_request(folder / "run", 4);
  request.options.stop_after.value = 2;
  train(request, reporter);
  testing::write_text(folder / "other.txt", "something else\n\naltogether\n");
  TrainRequest other = continued(folder / "run");
  other.options.data = (folder / "other.txt").string();
  other.given_keys = {"data"};
  const std::string text = error_text(ErrorCode::kInvalidArgument, [&] { train(other, reporter); });
  EXPECT_NE(text.find("--data"), std::string::npos) << text;
  EXPECT_NE(text.find("--init-from"), std::string::npos) << text;
}

TEST(Resume, ModesAndOverwrite) {
  ScratchFolder folder;
  RecordingReporter reporter;
  error_text(ErrorCode::kInvalidArgument, [&] { train(continued(folder / "run"), reporter); });
  EXPECT_FALSE(fs::exists(folder / "run"));  // a mistyped name makes no folder
  TrainRequest request = tiny_request(folder / "run", 2);
  request.resume = ResumeMode::kIfPresent;
  train(request, reporter);
  request.resume = ResumeMode::kNo;
  const std::string text =
      error_text(ErrorCode::kInvalidArgument, [&] { train(request, reporter); });
  EXPECT_NE(text.find("already holds a run"), std::string::npos) << text;
  testing::write_text(folder / "run/notes.txt", "mine");
  request.overwrite = true;
  request.options.steps.value = 1;
  EXPECT_EQ(train(request, reporter).point.step, 1);
  EXPECT_FALSE(fs::exists(folder / "run/step-000002"));
  EXPECT_TRUE(fs::exists(folder / "run/notes.txt"));
  EXPECT_EQ(loss_lines(folder / "run").size(), 1u);
}

TEST(Resume, InitFrom_StartsFromTheWeightsAlone) {
  ScratchFolder folder;
  RecordingReporter first;
  train(tiny_request(folder / "a", 20), first);
  RecordingReporter second;
  TrainRequest request = tiny_request(folder / "b", 2);
  request.options.init_from = (folder / "a").string();
  request.given_keys.erase("preset");
  train(request, second);
  EXPECT_EQ(second.steps.front().step, 1);
  EXPECT_LT(second.steps.front().loss, first.steps.front().loss - 0.5);
}

TEST(Resume, KeepsTheLastAndTheBestOnly) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = tiny_request(folder / "run", 8);
  request.options.save_every = {1, PeriodUnit::kUpdates};
  request.options.eval_every = {4, PeriodUnit::kUpdates};
  train(request, reporter);
  const auto best = read_best(folder / "run");
  ASSERT_TRUE(best.has_value());
  std::set<std::int64_t> kept;
  for (const CheckpointFolder& c : list_checkpoints(folder / "run", true)) {
    EXPECT_TRUE(c.faults.empty());
    kept.insert(c.point.step);
  }
  EXPECT_EQ(kept, (std::set<std::int64_t>{7, 8, best->step}));
  EXPECT_TRUE(fs::exists(folder / "run/loss.svg"));
  EXPECT_TRUE(fs::exists(folder / "run/config.json"));
}

TEST(Resume, LoadingTwentyTimesDoesNotGrow) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = tiny_request(folder / "run", 4);
  request.options.stop_after.value = 2;
  const fs::path checkpoint = train(request, reporter).last_checkpoint;
  const TrainerFile file = read_trainer_file(checkpoint);
  model::KDAConfig config = model::load_config((checkpoint / "config.json").string());
  model::CausalLM model(config, {});
  AdamW optimizer(model.parameters(), {});
  restore_tensors(checkpoint, file, model, optimizer);
  const std::int64_t before = test::allocated_bytes();
  for (int i = 0; i < 20; ++i)
    restore_tensors(checkpoint, file, model, optimizer);
  const std::int64_t checkpoint_bytes =
      static_cast<std::int64_t>(fs::file_size(checkpoint / "model.safetensors") +
                                fs::file_size(checkpoint / "optimizer.safetensors"));
  EXPECT_LT(test::allocated_bytes() - before, checkpoint_bytes / 20);
  EXPECT_EQ(test::mapped_files().find(checkpoint.string()), std::string::npos);
}

}  // namespace
}  // namespace kda::train
