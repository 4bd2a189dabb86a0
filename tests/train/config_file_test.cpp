#include "train/config_file.h"

#include <gtest/gtest.h>

#include "kda/error.h"
#include "train/fixture.h"

namespace kda::train {
namespace {

using testing::error_text;
using testing::ScratchFolder;
using testing::write_text;

TrainOptions complete(Task task) {
  TrainOptions o = task == Task::kSft ? sft_defaults() : TrainOptions{};
  o.data = "data/with \"quotes\"\\and 中文";
  o.lr = 0.1 + 0.2;  // no short decimal form
  o.clip = 2;        // a whole number where TOML needs a fraction
  o.steps.value = 800;
  o.eval_every = {1'000'000, PeriodUnit::kTokens};
  o.save_every = {};
  o.on_nonfinite.skips_allowed = 3;
  o.recompute = true;
  if (task == Task::kPretrain) o.set = {"num_hidden_layers=6", "tie_word_embeddings=false"};
  return o;
}

TEST(ConfigFile, Toml_RoundTripsEveryField) {
  for (const Task task : {Task::kPretrain, Task::kSft}) {
    ScratchFolder folder;
    const TrainOptions o = complete(task);
    write_text(folder / "run.toml", options_to_toml(o));
    const OptionsFile file = read_options_file(folder / "run.toml", task);
    EXPECT_EQ(options_to_json(file.options), options_to_json(o));
    EXPECT_TRUE(file.keys.contains("lr"));
    EXPECT_EQ(file.keys.contains("preset"), task == Task::kPretrain);
  }
}

TEST(ConfigFile, Toml_AsPeopleWriteIt) {
  ScratchFolder folder;
  write_text(folder / "run.toml",
             "# a comment\n"
             "max_tokens = \"8.2M\"   # with a unit\n"
             "warmup = '64u'\n"
             "batch = 8\n"
             "lr = 3e-4\n"
             "eval_every = 50\n"
             "save_every = \"1Mt\"\n"
             "sample_prompt = [\"The\", \"如果\"]\n");
  const OptionsFile file = read_options_file(folder / "run.toml", Task::kPretrain);
  EXPECT_EQ(file.options.max_tokens.value, 8'200'000);
  EXPECT_EQ(file.options.warmup.value, 64);
  EXPECT_EQ(file.options.batch, 8);
  EXPECT_EQ(file.options.eval_every, (Period{50, PeriodUnit::kUpdates}));
  EXPECT_EQ(file.options.save_every, (Period{1'000'000, PeriodUnit::kTokens}));
  EXPECT_EQ(file.options.sample_prompt.size(), 2u);
  EXPECT_EQ(file.options.seq_len, TrainOptions{}.seq_len);  // not in the file: the default
  EXPECT_EQ(file.keys.size(), 7u);
}

TEST(ConfigFile, Toml_OneFileForBothVerbs) {
  ScratchFolder folder;
  write_text(folder / "run.toml", "[train]\nbatch = 8\n[sft]\nbatch = 3\nepochs = \"2e\"\n");
  EXPECT_EQ(read_options_file(folder / "run.toml", Task::kPretrain).options.batch, 8);
  const OptionsFile sft = read_options_file(folder / "run.toml", Task::kSft);
  EXPECT_EQ(sft.options.batch, 3);
  EXPECT_EQ(sft.options.epochs.value, 2);
  EXPECT_EQ(sft.options.lr, sft_defaults().lr);
}

TEST(ConfigFile, Toml_MistakesNameFileAndPlace) {
  ScratchFolder folder;
  const auto refused = [&](const std::string& text) {
    write_text(folder / "run.toml", text);
    const std::string message = error_text(ErrorCode::kInvalidArgument, [&] {
      read_options_file(folder / "run.toml", Task::kPretrain);
    });
    EXPECT_NE(message.find("run.toml"), std::string::npos) << message;
    return message;
  };
  EXPECT_NE(refused("batch = 2\nseq_lem = 128\n").find("seq_len"), std::string::npos);
  EXPECT_NE(refused("learning_rat = 3e-4\n").find("did you mean \"lr\"?"), std::string::npos);
  EXPECT_NE(refused("zzzzzzzzzzzz = 1\n").find("kda train --help"), std::string::npos);
  EXPECT_NE(refused("batch = \"four\"\n").find("batch"), std::string::npos);
  EXPECT_NE(refused("steps = \"2Mt\"\n").find("optimizer steps"), std::string::npos);
  EXPECT_NE(refused("lr = fast\n").find(":1"), std::string::npos);
  EXPECT_NE(refused("batch = 1\n\nbatch = 2\n").find(":3"), std::string::npos);
  EXPECT_NE(refused("lr = 2024-01-01\n").find("lr"), std::string::npos);
  EXPECT_NE(refused("[sft]\nbatch = 1\n").find("[train]"), std::string::npos);
  EXPECT_NE(refused("[train]\nbatch = 1\n[training]\n").find("training"), std::string::npos);
  EXPECT_NE(refused("task = \"sft\"\n").find("kda sft"), std::string::npos);
  EXPECT_NE(refused("recompute = 1\n").find("recompute"), std::string::npos);
  error_text(ErrorCode::kIo, [&] { read_options_file(folder / "none.toml", Task::kPretrain); });
}

TEST(ConfigFile, Json_OfARunStillWorks) {
  ScratchFolder folder;
  write_text(folder / "config.json",
             R"({"format": "kda-run", "train": {"batch": 16, "lr": 0.5}, "model": {}})");
  const OptionsFile file = read_options_file(folder / "config.json", Task::kPretrain);
  EXPECT_EQ(file.options.batch, 16);
  EXPECT_EQ(file.keys, (std::set<std::string>{"batch", "lr"}));
}

}  // namespace
}  // namespace kda::train
