/// `kda sft` as a user runs it, and what kills and signals do to it.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <random>
#include <thread>

#include "cli/world.h"
#include "io/jsonl_log.h"
#include "io/sha256.h"

namespace kda::cli {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::fresh_folder;
using testing::kda;
using testing::Program;
using testing::ProgramResult;

/// Pairs in both directions, with eval/dev.* beside them.
const fs::path& pairs() {
  static const fs::path folder = [] {
    const fs::path path = fresh_folder("pairs");
    fs::create_directories(path / "eval");
    std::string rows;
    std::string en;
    std::string zh;
    for (int i = 0; i < 60; ++i) {
      const std::string english = "The clerk reads map " + std::to_string(i) + ".";
      const std::string chinese = "老师读第" + std::to_string(i) + "张地图。";
      rows += R"({"src": ")" + english + R"(", "tgt": ")" + chinese +
              R"(", "direction": "en2zh"})" + "\n";
      rows += R"({"src": ")" + chinese + R"(", "tgt": ")" + english +
              R"(", "direction": "zh2en"})" + "\n";
      if (i % 20 == 0) {
        en += "A stone reads map " + std::to_string(i) + ".\n";
        zh += "小猫读第" + std::to_string(i) + "张地图。\n";
      }
    }
    testing::write_text(path / "sft.train.jsonl", rows);
    testing::write_text(path / "eval/dev.en", en);
    testing::write_text(path / "eval/dev.zh", zh);
    return path;
  }();
  return folder;
}

std::vector<std::string> sft_arguments(const fs::path& out, int steps,
                                       const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{"sft",
                                 "--ckpt",
                                 testing::trained_run().string(),
                                 "--data",
                                 pairs().string(),
                                 "--out",
                                 out.string(),
                                 "--steps",
                                 std::to_string(steps),
                                 "--batch",
                                 "2",
                                 "--seq-len",
                                 "64",
                                 "--threads",
                                 "1",
                                 "--device",
                                 "cpu",
                                 "--heldout-share",
                                 "0.1",
                                 "--mt-pairs",
                                 "2",
                                 "--mt-tokens",
                                 "12",
                                 "--log-every",
                                 "1u"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(SftVerb, RunsFromACheckpointToAModel) {
  const fs::path run = fresh_folder("sft") / "run";
  const ProgramResult result = kda(sft_arguments(run, 6, {"--eval-every", "3u"}));
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  for (const char* part : {"Translate to", "of them in answers", "| translated ", "held-out loss",
                           "tok/param", "best"}) {
    EXPECT_TRUE(has(result.out, part)) << part << " in " << result.out;
  }
  EXPECT_EQ(kda({"ckpt", "verify", run.string()}).exit_code, 0);
  const ProgramResult text = kda({"generate", "--ckpt", (run / "best").string(), "--prompt",
                                  "Translate to English:\n老师\n", "--max-new-tokens", "4"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
}

TEST(SftVerb, TwoProcessesGiveTheBytesOfOne) {
  const fs::path folder = fresh_folder("sft-resume");
  const std::vector<std::string> more{"--grad-accum", "2", "--eval-every", "4u"};
  std::vector<std::string> split = more;
  split.insert(split.end(), {"--stop-after", "5"});
  ASSERT_EQ(kda(sft_arguments(folder / "one", 8, more)).exit_code, 0);
  ASSERT_EQ(kda(sft_arguments(folder / "two", 8, split)).exit_code, 0);
  const ProgramResult rest = kda({"sft", "--resume", (folder / "two").string()});
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    EXPECT_EQ(io::to_hex(io::sha256_file(folder / "one/step-000008" / name)),
              io::to_hex(io::sha256_file(folder / "two/step-000008" / name)))
        << name;
  }
}

TEST(SftVerb, MistakesAreOneLine) {
  const fs::path run = fresh_folder("sft-wrong") / "run";
  expect_error(kda({"sft", "--data", pairs().string(), "--steps", "2", "--out", run.string()}), 2,
               "sft", {"--ckpt"});
  expect_error(kda(sft_arguments(run, 2, {"--target-lang", "fr"})), 2, "sft", {"en or zh", "fr"});
  expect_error(kda(sft_arguments(run, 2, {"--preset", "toy"})), 2, "sft", {"--preset"});
  expect_error(kda(sft_arguments(run, 2, {"--data", testing::corpus().string()})), 1, "sft",
               {"no sft*.jsonl", "pretrain.zh.txt"});
  expect_error(kda({"sft", "--resume", testing::trained_run().string()}), 2, "sft",
               {"kda train", "kda sft"});
  expect_error(kda(sft_arguments(run, 2, {"--dtype", "fp16"})), 3, "sft", {"fp16", "65504"});
}

TEST(SftVerb, KilledAtRandomMoments_AlwaysHasASoundCheckpoint) {
  const fs::path run = fresh_folder("sft-crash") / "run";
  std::vector<std::string> arguments = sft_arguments(run, 100000, {"--save-every", "1u"});
  arguments.emplace_back("--auto-resume");
  std::mt19937 random(815);
  for (int round = 0; round < 20; ++round) {
    Program program(arguments);
    ASSERT_TRUE(program.wait_for("saved ", 120)) << program.finish(1).err;
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 60));
    program.send(SIGKILL);
    ASSERT_EQ(program.finish(30).exit_code, -SIGKILL);
    std::int64_t step = 0;
    for (const io::Json& record : io::read_jsonl(run / "metrics.jsonl")) {
      if (record.at("kind") != "step") continue;
      EXPECT_EQ(record.at("step").get<std::int64_t>(), step + 1);
      step = record.at("step").get<std::int64_t>();
    }
    EXPECT_GE(step, round);  // every round adds a step that lasts
  }
  EXPECT_EQ(kda({"ckpt", "verify", run.string()}).exit_code, 0);
}

TEST(SftVerb, FullDisk_KeepsThePreviousCheckpoint) {
  const fs::path folder = fresh_folder("sft-full");
  ASSERT_EQ(kda(sft_arguments(folder / "free", 1)).exit_code, 0);  // tokenizes, with room
  std::uintmax_t checkpoint = 0;
  for (const auto& entry : fs::directory_iterator(folder / "free/step-000001"))
    checkpoint += entry.file_size();
  const fs::path run = folder / "run";
  const ProgramResult result = kda(sft_arguments(run, 5, {"--save-every", "1u"}),
                                   {"",
                                    {{"LD_PRELOAD", KDA_FULL_DISK},
                                     {"KDA_TEST_DISK_BYTES", std::to_string(3 * checkpoint / 2)}}});
  EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
  EXPECT_TRUE(has(result.err, "No space left on device")) << result.err;
  EXPECT_EQ(kda({"ckpt", "verify", run.string()}).exit_code, 0);
  for (const auto& entry : fs::directory_iterator(run)) {
    EXPECT_NE(entry.path().filename().string().rfind(".tmp", 0), 0u) << entry.path();
  }
  EXPECT_EQ(kda({"sft", "--resume", run.string()}).exit_code, 0);
}

/// Sends SIGTERM when `needle` shows; the run is saved and goes on.
void stop_sft(const std::string& name, const std::string& needle,
              const std::vector<std::string>& more) {
  SCOPED_TRACE(name);
  const fs::path run = fresh_folder("sft-signal-" + name) / "run";
  Program program(sft_arguments(run, 100000, more));
  ASSERT_TRUE(program.wait_for(needle)) << program.finish(1).err;
  program.send(SIGTERM);
  const ProgramResult result = program.finish(60);
  EXPECT_EQ(result.exit_code, 143) << result.out << result.err;
  EXPECT_TRUE(has(result.out, "kda sft --resume")) << result.out;
  EXPECT_EQ(kda({"ckpt", "verify", run.string()}).exit_code, 0);
  Program second({"sft", "--resume", run.string(), "--log-every", "1u"});
  EXPECT_TRUE(second.wait_for("tok/s")) << second.finish(1).err;
}

TEST(SftVerb, Term_InTraining) { stop_sft("steps", "step      3/", {}); }

TEST(SftVerb, Term_InTheFirstStep) { stop_sft("first", "== training", {"--grad-accum", "1000"}); }

TEST(SftVerb, Term_InATranslation) {
  stop_sft("translate", "step      1/", {"--eval-every", "1u", "--mt-tokens", "60000"});
}

TEST(SftVerb, Term_InTokenizing) {
  const fs::path folder = fresh_folder("sft-tokenize");
  std::string rows;
  for (int i = 0; i < 200000; ++i) {
    rows += R"({"src": "map )" + std::to_string(i) + R"(", "tgt": "地图", "direction": "en2zh"})" +
            "\n";
  }
  testing::write_text(folder / "big.jsonl", rows);
  Program program(sft_arguments(folder / "run", 5, {"--data", (folder / "big.jsonl").string()}));
  while (!fs::exists(folder / "run/.lock")) {
    if (program.wait_for("== configuration", 0.02)) break;
  }
  program.send(SIGTERM);
  const ProgramResult result = program.finish(60);
  EXPECT_EQ(result.exit_code, 143) << result.out;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    EXPECT_NE(entry.path().extension(), ".kdatok") << entry.path();
  }
}

}  // namespace
}  // namespace kda::cli
