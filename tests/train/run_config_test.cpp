// RUN/config.json and the printed configuration: what took effect, and nothing else.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "io/json.h"
#include "train/config_file.h"
#include "train/fixture.h"
#include "train/run_memory.h"
#include "train/run_plan.h"
#include "train/trainer.h"

namespace kda::train {
namespace {

namespace fs = std::filesystem;
using testing::RecordingReporter;
using testing::ScratchFolder;
using testing::tiny_request;

io::Json options_of(const fs::path& run) {
  return io::read_json_file(run / "config.json").at("train");
}

/// The printed value of a key.
std::string printed(const RecordingReporter& reporter, const std::string& key) {
  const std::string start = "\n  " + key + " ";
  for (const std::string& note : reporter.notes) {
    const auto at = note.find(start);
    if (at == std::string::npos) continue;
    const auto begin = note.find_first_not_of(' ', at + start.size());
    return note.substr(begin, note.find('\n', begin) - begin);
  }
  return "nothing";
}

TEST(RunConfig, LeavesOutWhatDidNothing) {
  ScratchFolder folder;
  RecordingReporter reporter;
  train(tiny_request(folder / "run", 2), reporter);
  const io::Json options = options_of(folder / "run");
  EXPECT_EQ(options.at("preset"), "tiny");
  EXPECT_EQ(options.at("optimizer"), "adamw");
  EXPECT_EQ(options.at("warmup"), 1);  // settled, no wish any more
  for (const char* key : {"momentum", "qk_clip", "decay", "attnres_block_size", "sample_prompt",
                          "sample_tokens", "eval_tokens", "heldout_share", "mt_pairs", "src"}) {
    EXPECT_FALSE(options.contains(key)) << key;
  }
  EXPECT_EQ(printed(reporter, "momentum"), "-");
  EXPECT_EQ(printed(reporter, "preset"), "tiny");

  TrainRequest muon = tiny_request(folder / "muon", 2);
  muon.options.optimizer = "muon";
  train(muon, reporter);
  EXPECT_EQ(options_of(folder / "muon").at("momentum"), 0.95);
}

TEST(RunConfig, RepeatsTheRun) {
  ScratchFolder folder;
  RecordingReporter reporter;
  train(tiny_request(folder / "one", 3), reporter);
  TrainRequest request;
  const OptionsFile file = read_options_file(folder / "one/config.json", Task::kPretrain);
  request.options = file.options;
  request.file_keys = file.keys;
  request.options.out = (folder / "two").string();
  RecordingReporter second;
  train(request, second);
  EXPECT_TRUE(second.warnings.empty());
  EXPECT_EQ(testing::loss_lines(folder / "one"), testing::loss_lines(folder / "two"));
}

TEST(RunConfig, APresetThatGaveNoModelIsNotNamed) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest first = tiny_request(folder / "first", 4);
  first.options.stop_after.value = 2;
  const fs::path checkpoint = train(first, reporter).last_checkpoint;

  TrainRequest resumed;
  resumed.options.out = (folder / "first").string();
  resumed.resume = ResumeMode::kYes;
  train(resumed, reporter);
  EXPECT_EQ(options_of(folder / "first").at("preset"), "tiny");  // the run began with it

  const auto without_preset = [&](const char* out) {
    TrainRequest request = tiny_request(folder / out, 2);
    request.options.preset = TrainOptions{}.preset;
    request.given_keys.erase("preset");
    return request;
  };
  TrainRequest init = without_preset("init");
  init.options.init_from = checkpoint.string();
  RecordingReporter of_init;
  train(init, of_init);
  EXPECT_FALSE(options_of(folder / "init").contains("preset"));
  EXPECT_EQ(printed(of_init, "preset"), "-");
  EXPECT_TRUE(of_init.warnings.empty());

  TrainRequest shaped = without_preset("shaped");
  shaped.options.model_config = (checkpoint / "config.json").string();
  shaped.options.preset = "k3-tiny";  // of a file
  shaped.file_keys = {"preset"};
  RecordingReporter of_shaped;
  train(shaped, of_shaped);
  EXPECT_FALSE(options_of(folder / "shaped").contains("preset"));
  ASSERT_EQ(of_shaped.warnings.size(), 1u);
  EXPECT_NE(of_shaped.warnings[0].find("preset = k3-tiny has no effect with --model-config"),
            std::string::npos)
      << of_shaped.warnings[0];
}

/// The preset that recomputes by default, shrunk in everything but its defaults.
TrainRequest small_half_billion(const fs::path& out) {
  TrainRequest request = tiny_request(out, 2);
  request.options.preset = "k3-0.5b";
  request.options.set = {"hidden_size=64", "num_hidden_layers=4", "moe_config.num_experts=4",
                         "moe_config.intermediate_size=32", "moe_config.latent_size=32"};
  return request;
}

TEST(RunConfig, APresetRecomputesOnlyWhereMemoryIsScarce) {
  ScratchFolder folder;
  RecordingReporter reporter;
  train(small_half_billion(folder / "free"), reporter);
  EXPECT_EQ(options_of(folder / "free").at("recompute"), false);
  EXPECT_EQ(printed(reporter, "recompute"), "false");
  EXPECT_TRUE(reporter.has_note("recompute  off, though the preset's default is on: about "));

  // Asked for, it stays, and changes no bit.
  TrainRequest asked = small_half_billion(folder / "asked");
  asked.options.recompute = true;
  asked.given_keys.insert("recompute");
  RecordingReporter of_asked;
  train(asked, of_asked);
  EXPECT_EQ(options_of(folder / "asked").at("recompute"), true);
  EXPECT_FALSE(of_asked.has_note("recompute  "));
  EXPECT_EQ(testing::loss_lines(folder / "free"), testing::loss_lines(folder / "asked"));

  // A batch that would take all memory without it.
  TrainRequest large = small_half_billion(folder / "large");
  const RunPlan small = make_plan(large, reporter);
  const model::MemoryEstimate memory = memory_of(small);
  large.options.out = (folder / "larger").string();
  large.options.batch = available_on(small) / (memory.activation_bytes_per_token * 32);
  const RunPlan plan = make_plan(large, reporter);
  EXPECT_TRUE(plan.options.recompute);
  EXPECT_TRUE(plan.recompute_note.starts_with("on, the preset's default: about "));
  EXPECT_LT(memory_of(plan).total_bytes(), available_on(plan));

  // With attention residuals the bits would differ: memory does not decide.
  TrainRequest depth = small_half_billion(folder / "depth");
  depth.options.attnres = "block";
  RecordingReporter of_depth;
  train(depth, of_depth);
  EXPECT_EQ(options_of(folder / "depth").at("recompute"), true);
  EXPECT_TRUE(of_depth.has_note("recompute  on, the preset's default"));
}

}  // namespace
}  // namespace kda::train
