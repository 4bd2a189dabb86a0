#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <cstdlib>

#include "io/atomic_file.h"
#include "io/jsonl_log.h"
#include "kda/error.h"
#include "model/generate.h"
#include "model/weights.h"
#include "text/prompts.h"
#include "train/checkpoint.h"
#include "train/fixture.h"
#include "train/signals.h"
#include "train/trainer.h"
#include "train/translation_probe.h"

namespace kda::train {
namespace {

namespace fs = std::filesystem;
using testing::error_text;
using testing::loss_lines;
using testing::RecordingReporter;
using testing::ScratchFolder;
using testing::tensor_hashes;

constexpr std::int64_t kPairs = 20;

std::string english(std::int64_t i) {
  return testing::documents(1, static_cast<int>(2 * i + 1))[0];
}
std::string chinese(std::int64_t i) { return testing::documents(1, static_cast<int>(2 * i))[0]; }

std::string row(const std::string& src, const std::string& tgt, const char* direction) {
  return io::Json({{"src", src}, {"tgt", tgt}, {"direction", direction}}).dump() + "\n";
}

/// A folder with 20 pairs in both directions, eval/dev.* and the checkpoint to start from.
struct World {
  ScratchFolder folder;
  fs::path data;
  fs::path base;
};

const World& world() {
  static const World* made = [] {
    auto* w = new World;  // lives as long as the process, like the corpus
    w->data = w->folder / "data";
    fs::create_directories(w->data / "eval");
    std::string rows;
    std::string en;
    std::string zh;
    for (std::int64_t i = 0; i < kPairs; ++i) {
      rows += row(english(i), chinese(i), "en2zh") + row(chinese(i), english(i), "zh2en");
      if (i % 5 == 0) {
        en += english(i) + "\n";
        zh += chinese(i) + "\n";
      }
    }
    testing::write_text(w->data / "sft.train.jsonl", rows);
    testing::write_text(w->data / "eval/dev.en", en);
    testing::write_text(w->data / "eval/dev.zh", zh);
    RecordingReporter reporter;
    TrainRequest request = testing::tiny_request(w->folder / "base", 4);
    w->base = train(request, reporter).last_checkpoint;
    return w;
  }();
  return *made;
}

TrainRequest sft_request(const fs::path& out, std::int64_t steps) {
  TrainRequest request;
  TrainOptions& o = request.options = sft_defaults();
  o.data = world().data.string();
  o.init_from = world().base.string();
  o.out = out.string();
  o.steps.value = steps;
  o.batch = 2;
  o.seq_len = 96;
  o.lr = 3e-3;
  o.threads = 1;
  o.device = "cpu";
  o.heldout_share = 0.2;
  o.mt_pairs = 2;
  o.mt_tokens = 24;
  o.eval_every = {};
  o.save_every = {};
  o.log_every = {1, PeriodUnit::kUpdates};
  request.given_keys = {"data",    "init_from", "out",     "steps",         "batch",
                        "seq_len", "lr",        "threads", "heldout_share", "device"};
  return request;
}

TrainRequest continued_sft(const fs::path& out) {
  TrainRequest request;
  request.options = sft_defaults();
  request.options.out = out.string();
  request.resume = ResumeMode::kYes;
  return request;
}

TEST(Sft, StartsFromACheckpointAloneAndSaysWhatItLearns) {
  ScratchFolder folder;
  RecordingReporter reporter;
  const TrainOutcome outcome = train(sft_request(folder / "run", 3), reporter);
  EXPECT_EQ(outcome.point.step, 3);
  std::string notes;
  for (const std::string& note : reporter.notes)
    notes += note + "\n";
  EXPECT_NE(notes.find("of them in answers, which are learnt"), std::string::npos) << notes;
  EXPECT_NE(notes.find("Translate to"), std::string::npos) << notes;  // the first batch as text
  const TrainerFile file = read_trainer_file(outcome.last_checkpoint);
  EXPECT_EQ(file.options.task, Task::kSft);
  EXPECT_EQ(file.prompt_version, text::kPromptVersion);
  EXPECT_TRUE(model::load_config((outcome.last_checkpoint / "config.json").string()) ==
              model::load_config((world().base / "config.json").string()));
}

/// Stopped anywhere, also inside a window, and continued: the bytes of one run.
TEST(Sft, AModelOfTheOptionsIsNeitherTakenNorNamed) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = sft_request(folder / "run", 1);
  request.options.set = {"rms_norm_eps=0.25"};
  request.options.model_config = (folder / "none.json").string();
  request.file_keys = {"set", "model_config"};
  const TrainOutcome outcome = train(request, reporter);
  EXPECT_EQ(reporter.warnings.size(), 2u);
  EXPECT_TRUE(model::load_config((outcome.last_checkpoint / "config.json").string()) ==
              model::load_config((world().base / "config.json").string()));
  const io::Json options = io::read_json_file(folder / "run/config.json").at("train");
  for (const char* key : {"preset", "set", "model_config", "attnres", "momentum", "sample_prompt"})
    EXPECT_FALSE(options.contains(key)) << key;
  EXPECT_EQ(options.at("init_from"), world().base.string());
}

TEST(Sft, ResumeEqualsTheUninterruptedRun) {
  const auto full = [](const fs::path& out) {
    TrainRequest request = sft_request(out, 12);
    request.options.grad_accum = 3;
    request.options.eval_every = {4, PeriodUnit::kUpdates};
    request.options.save_every = {5, PeriodUnit::kUpdates};
    return request;
  };
  ScratchFolder folder;
  RecordingReporter reporter;
  train(full(folder / "one"), reporter);
  for (const RunPoint stop : {RunPoint{0, 2}, RunPoint{4, 1}, RunPoint{5, 0}, RunPoint{9, 2}}) {
    TrainRequest request = stop.step == 0 ? full(folder / "two") : continued_sft(folder / "two");
    TrainHooks hooks;
    hooks.after_micro_batch = [&](const RunPoint& point) {
      if (point == stop || (stop.micro == 0 && point == RunPoint{stop.step - 1, 3})) {
        request_stop(SIGTERM);
      }
    };
    const TrainOutcome outcome = train(request, reporter, hooks);
    clear_stop();
    EXPECT_EQ(outcome.point, stop);
  }
  train(continued_sft(folder / "two"), reporter);
  EXPECT_EQ(tensor_hashes(folder / "one/step-000012"), tensor_hashes(folder / "two/step-000012"));
  EXPECT_EQ(loss_lines(folder / "one"), loss_lines(folder / "two"));
}

/// Twenty pairs learnt by heart: the model gives them back and stops by itself, every time.
TEST(Sft, OverfitPairsEndInEosAndCountAsTranslated) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = sft_request(folder / "run", 150);
  TrainOptions& o = request.options;
  o.heldout_share = 0;
  o.batch = 8;
  o.lr = 1e-2;
  o.eval_every = {50, PeriodUnit::kUpdates};
  o.mt_pairs = 4;
  o.mt_tokens = 48;
  const TrainOutcome outcome = train(request, reporter);
  EXPECT_LT(reporter.steps.back().loss, 0.05);
  ASSERT_FALSE(reporter.evaluations.empty());
  EXPECT_FALSE(reporter.evaluations.back().has_loss);
  EXPECT_EQ(reporter.evaluations.back().mt_sentences, 8);
  EXPECT_EQ(reporter.evaluations.back().success_rate, 1.0);
  ASSERT_TRUE(outcome.best_success.has_value());
  EXPECT_EQ(*outcome.best_success, 1.0);

  const model::CausalLM tuned = model::load_model(outcome.last_checkpoint.string(), {});
  std::vector<std::vector<std::int64_t>> prompts;
  for (std::int64_t i = 0; i < kPairs; ++i) {
    const auto ids = text::encode_prompt(
        testing::tokenizer(), text::translation_prompt(text::Language::kChinese, english(i)));
    prompts.emplace_back(ids.begin(), ids.end());
  }
  model::GenerateOptions how;
  how.sampling.temperature = 0;
  how.max_new_tokens = 64;
  how.stop_ids = {testing::tokenizer().eos_id()};
  const auto rows = model::generate(tuned, prompts, how);
  for (std::int64_t i = 0; i < kPairs; ++i) {
    EXPECT_EQ(rows[static_cast<std::size_t>(i)].reason, model::FinishReason::kStop) << i;
  }
}

/// A model that has never seen a prompt does not stop after a translation and translates nothing.
TEST(Sft, APretrainedModelAloneTranslatesNothing) {
  RecordingReporter reporter;
  const model::CausalLM model = model::load_model(world().base.string(), {});
  TrainOptions o = sft_request("unused", 1).options;
  const TranslationScore score =
      translate_sets(model, testing::tokenizer(), find_translation_sets(o), 24, reporter);
  EXPECT_EQ(score.sentences, 4);
  EXPECT_EQ(score.success_rate, 0.0);
}

/// The best is chosen by translations first, then by loss; its folder says both.
TEST(Sft, BestIsBySuccessThenLoss) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = sft_request(folder / "run", 60);
  request.options.batch = 8;
  request.options.lr = 1e-2;
  request.options.eval_every = {10, PeriodUnit::kUpdates};
  request.options.mt_tokens = 48;
  const TrainOutcome outcome = train(request, reporter);
  const EvalRecord* wanted = nullptr;
  for (const EvalRecord& e : reporter.evaluations) {
    const bool better = wanted == nullptr || e.success_rate > wanted->success_rate ||
                        (e.success_rate == wanted->success_rate && e.loss < wanted->loss);
    EXPECT_EQ(e.best, better) << e.step;
    if (better) wanted = &e;
  }
  ASSERT_NE(wanted, nullptr);
  const auto best = read_best(folder / "run");
  ASSERT_TRUE(best.has_value());
  EXPECT_EQ(best->step, wanted->step);
  EXPECT_EQ(best->success_rate, std::optional(wanted->success_rate));
  EXPECT_EQ(outcome.best_step, wanted->step);
}

TEST(Sft, LongAndEmptyExamplesAreLeftOutAndTheLossStaysFinite) {
  ScratchFolder folder;
  std::string rows;
  std::string endless;
  for (int i = 0; i < 200; ++i)
    endless += "the clerk reads ";
  for (int i = 0; i < 30; ++i) {
    rows += row(endless, "x", "en2zh") + row("the clerk", "", "en2zh");
    rows += row(english(i), chinese(i), "en2zh");
  }
  testing::write_text(folder / "rows.jsonl", rows);
  RecordingReporter reporter;
  TrainRequest request = sft_request(folder / "run", 3);
  request.options.data = (folder / "rows.jsonl").string();
  const TrainOutcome outcome = train(request, reporter);
  EXPECT_EQ(outcome.point.step, 3);
  for (const StepRecord& step : reporter.steps)
    EXPECT_TRUE(std::isfinite(step.loss));
  std::string notes;
  for (const std::string& note : reporter.notes)
    notes += note + "\n";
  EXPECT_NE(notes.find("30 without an answer left out"), std::string::npos) << notes;
  EXPECT_NE(notes.find("longer than --seq-len 96"), std::string::npos) << notes;
  EXPECT_TRUE(reporter.evaluations.empty());  // there is no eval folder beside this file

  testing::write_text(folder / "long.jsonl", row(endless, "x", "en2zh"));
  request.options.data = (folder / "long.jsonl").string();
  request.options.out = (folder / "none").string();
  const std::string text =
      error_text(ErrorCode::kInvalidArgument, [&] { train(request, reporter); });
  EXPECT_NE(text.find("seq-len"), std::string::npos) << text;
  EXPECT_FALSE(fs::exists(folder / "none"));
}

TEST(Sft, BudgetInEpochsReadsEveryExampleThatOften) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = sft_request(folder / "run", 0);
  request.options.epochs.value = 2;
  request.options.heldout_share = 0;
  request.options.mt_pairs = 0;
  train(request, reporter);
  EXPECT_GE(reporter.steps.back().epoch, 2.0);
  EXPECT_LT(reporter.steps.back().epoch, 2.3);
}

TEST(Sft, RefusesWhatIsNotItsOwn) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = sft_request(folder / "run", 2);
  train(request, reporter);
  // A run belongs to its verb.
  TrainRequest other;
  other.options.out = (folder / "run").string();
  other.resume = ResumeMode::kYes;
  std::string text = error_text(ErrorCode::kInvalidArgument, [&] { train(other, reporter); });
  EXPECT_NE(text.find("kda sft"), std::string::npos) << text;
  // No checkpoint to start from, or none with this name.
  request = sft_request(folder / "two", 2);
  request.options.init_from.clear();
  text = error_text(ErrorCode::kInvalidArgument, [&] { train(request, reporter); });
  EXPECT_NE(text.find("--init-from"), std::string::npos) << text;
  request.options.init_from = (folder / "nowhere").string();
  error_text(ErrorCode::kIo, [&] { train(request, reporter); });
  // Sentences without references.
  request = sft_request(folder / "two", 2);
  request.options.src = (world().data / "eval/dev.en").string();
  text = error_text(ErrorCode::kInvalidArgument, [&] { train(request, reporter); });
  EXPECT_NE(text.find("--ref"), std::string::npos) << text;
  testing::write_text(folder / "short", "one line\n");
  request.options.ref = (folder / "short").string();
  request.options.target_lang = "zh";
  text = error_text(ErrorCode::kInvalidArgument, [&] { train(request, reporter); });
  EXPECT_NE(text.find("(4), got 1"), std::string::npos) << text;
}

TEST(Sft, AnotherWorldSizeIsRefusedNamingBoth) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = sft_request(folder / "run", 4);
  request.options.stop_after.value = 2;
  train(request, reporter);
  ::setenv("WORLD_SIZE", "4", 1);
  const std::string text = error_text(ErrorCode::kInvalidArgument,
                                      [&] { train(continued_sft(folder / "run"), reporter); });
  const std::string fresh = error_text(ErrorCode::kUnsupported,
                                       [&] { train(sft_request(folder / "other", 2), reporter); });
  ::unsetenv("WORLD_SIZE");
  EXPECT_NE(text.find("1 process,"), std::string::npos) << text;
  EXPECT_NE(text.find("4"), std::string::npos) << text;
  EXPECT_NE(fresh.find("WORLD_SIZE"), std::string::npos) << fresh;
}

}  // namespace
}  // namespace kda::train
