#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "cli/world.h"

namespace kda::cli {
namespace {

namespace fs = std::filesystem;
using testing::fresh_folder;
using testing::kda;
using testing::mentions;
using testing::Program;
using testing::ProgramResult;
using testing::train_arguments;

/// Starts a long run, sends `signal_number` once `needle` shows, and expects a clean stop that can
/// be continued.
void stop_and_continue(const std::string& name, const std::string& needle, int signal_number,
                       const std::vector<std::string>& more) {
  SCOPED_TRACE(name);
  const fs::path run = fresh_folder("signal-" + name) / "run";
  Program program(train_arguments(run, 100000, more));
  ASSERT_TRUE(program.wait_for(needle)) << program.finish(1).err;
  program.send(signal_number);
  const ProgramResult result = program.finish(60);
  EXPECT_EQ(result.exit_code, 128 + signal_number) << result.out << result.err;
  EXPECT_TRUE(mentions(result.out, "--resume")) << result.out;
  const ProgramResult verify = kda({"ckpt", "verify", run.string()});
  EXPECT_EQ(verify.exit_code, 0) << verify.err;
  // The evaluation and samples that were cut short come first; one more step is enough to see it
  // run.
  Program second({"train", "--resume", run.string(), "--log-every", "1u"});
  EXPECT_TRUE(second.wait_for("tok/s")) << second.finish(1).err;
}

TEST(Signals, Term_InTraining) { stop_and_continue("steps", "step      3/", SIGTERM, {}); }

TEST(Signals, Int_InTraining) { stop_and_continue("int", "step      2/", SIGINT, {}); }

TEST(Signals, Hup_InTraining) { stop_and_continue("hup", "step      2/", SIGHUP, {}); }

TEST(Signals, Term_InTheFirstStep) {
  stop_and_continue("first", "== training", SIGTERM, {"--grad-accum", "1000"});
}

TEST(Signals, Term_InAnEvaluation) {
  // One-token rows make the evaluation of the first step long.
  stop_and_continue("eval", "step      1/", SIGTERM, {"--eval-every", "1u", "--eval-tokens", "0"});
}

TEST(Signals, Term_InASample) {
  stop_and_continue(
      "sample", "step      1/", SIGTERM,
      {"--sample-every", "1u", "--sample-prompt", "The", "--sample-tokens", "1000000"});
}

TEST(Signals, Term_InTokenizing) {
  const fs::path folder = fresh_folder("signal-tokenize");
  std::string text;
  for (int i = 0; i < 400000; ++i)
    text += "document number " + std::to_string(i) + " is here\n\n";
  testing::write_text(folder / "big.txt", text);
  std::vector<std::string> arguments = train_arguments(folder / "run", 5);
  arguments.insert(arguments.end(), {"--data", (folder / "big.txt").string()});
  Program program(arguments);
  // Nothing is printed before tokenizing is done: the lock file tells that the run has begun.
  while (!fs::exists(folder / "run/.lock")) {
    if (program.wait_for("== configuration", 0.02)) break;
  }
  program.send(SIGTERM);
  const ProgramResult result = program.finish(60);
  EXPECT_EQ(result.exit_code, 143) << result.out;
  EXPECT_TRUE(mentions(result.err, "stopped by SIGTERM")) << result.err;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    EXPECT_NE(entry.path().extension(), ".kdatok") << entry.path();
  }
}

/// Saving takes most of a step of the tiny model, so some of these stops fall into a save.
TEST(Signals, Term_InASave) {
  const fs::path run = fresh_folder("signal-save") / "run";
  std::vector<std::string> arguments = train_arguments(run, 100000, {"--save-every", "1u"});
  arguments.emplace_back("--auto-resume");
  for (int round = 0; round < 5; ++round) {
    Program program(arguments);
    ASSERT_TRUE(program.wait_for("saved ")) << program.finish(1).err;
    std::this_thread::sleep_for(std::chrono::milliseconds(7 * round));
    program.send(SIGTERM);
    const ProgramResult result = program.finish(60);
    EXPECT_EQ(result.exit_code, 143) << result.out << result.err;
    EXPECT_EQ(kda({"ckpt", "verify", run.string()}).exit_code, 0);
    for (const auto& entry : fs::directory_iterator(run)) {
      EXPECT_NE(entry.path().filename().string().rfind(".tmp", 0), 0u) << entry.path();
    }
  }
}

/// A text that takes seconds to work through.
fs::path large_text(const fs::path& folder) {
  std::string text;
  for (int i = 0; i < 400000; ++i)
    text += "document number " + std::to_string(i) + " 是第" + std::to_string(i) + "篇\n\n";
  testing::write_text(folder / "big.txt", text);
  return folder / "big.txt";
}

/// Waits until the program has made something in `folder`: from then on it hears signals.
bool wait_for_files(Program& program, const fs::path& folder) {
  for (int i = 0; i < 2000; ++i) {
    if (fs::exists(folder) && !fs::is_empty(folder)) return true;
    program.wait_for("never printed", 0.03);
  }
  return false;
}

void expect_only_the_text(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      EXPECT_EQ(entry.path().filename(), "big.txt") << entry.path();
    }
  }
}

TEST(Signals, Term_InDataPack) {
  const fs::path folder = fresh_folder("signal-pack");
  Program program({"data", "pack", "--data", large_text(folder).string(), "--tokenizer",
                   testing::tokenizer_file().string(), "--out", (folder / "out").string()});
  ASSERT_TRUE(wait_for_files(program, folder / "out"));
  program.send(SIGTERM);
  const ProgramResult result = program.finish(120);
  EXPECT_EQ(result.exit_code, 143) << result.out << result.err;
  expect_only_the_text(folder);
}

TEST(Signals, Term_InTokenizerTraining) {
  const fs::path folder = fresh_folder("signal-tokenizer");
  Program program({"tokenizer", "train", "--vocab-size", "8000", "--data",
                   large_text(folder).string(), "--out", (folder / "out").string()});
  ASSERT_TRUE(program.wait_for("training a ")) << program.finish(1).err;
  program.send(SIGTERM);
  const ProgramResult result = program.finish(120);
  EXPECT_EQ(result.exit_code, 143) << result.out << result.err;
  expect_only_the_text(folder);
}

TEST(Signals, Term_InPerplexity) {
  const fs::path folder = fresh_folder("signal-ppl");
  const fs::path cache = folder / "cache";
  Program program({"eval", "ppl", "--ckpt", testing::trained_run().string(), "--text",
                   large_text(folder).string(), "--cache", cache.string(), "--seq-len", "1"});
  ASSERT_TRUE(wait_for_files(program, cache));
  program.send(SIGTERM);
  const ProgramResult result = program.finish(120);
  EXPECT_EQ(result.exit_code, 143) << result.out << result.err;
  EXPECT_EQ(result.out.find("cross entropy"), std::string::npos) << result.out;
}

TEST(Signals, SecondOne_LeavesAtOnce) {
  const fs::path run = fresh_folder("signal-twice") / "run";
  // A micro-batch that takes long: the first signal cannot be answered within it.
  Program program(train_arguments(run, 100000, {"--batch", "512", "--seq-len", "512"}));
  ASSERT_TRUE(program.wait_for("== training"));
  program.send(SIGINT);
  program.send(SIGTERM);
  const ProgramResult result = program.finish(60);
  EXPECT_TRUE(result.exit_code == 143 || result.exit_code == 130) << result.exit_code;
}

/// Runs the program behind a pipe whose reader leaves after the first line that begins with
/// `needle`; its exit code.
int exit_code_without_reader(const std::vector<std::string>& arguments, const std::string& needle) {
  std::string command = "exec " KDA_PROGRAM;
  for (const std::string& word : arguments)
    command += " '" + word + "'";
  FILE* pipe = ::popen((command + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return -1;
  std::string line;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    if (c != '\n') {
      line += static_cast<char>(c);
    } else if (line.starts_with(needle)) {
      break;
    } else {
      line.clear();
    }
  }
  const int status = ::pclose(pipe);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(Signals, Pipe_WhenTheReaderLeavesTheRunIsSaved) {
  const fs::path run = fresh_folder("signal-pipe") / "run";
  EXPECT_EQ(exit_code_without_reader(train_arguments(run, 100000, {"--log-every", "1u"}), "step "),
            128 + SIGPIPE);
  EXPECT_EQ(kda({"ckpt", "verify", run.string()}).exit_code, 0);
}

TEST(Signals, FileSizeLimit_IsAnErrorThatLeavesNothingHalfWritten) {
  const fs::path run = fresh_folder("signal-limit") / "run";
  // In blocks of 512 or 1024 bytes, as the shell counts: less than the weights in both.
  std::vector<std::string> arguments = train_arguments(run, 3);
  std::string script = "ulimit -f 100; exec " KDA_PROGRAM;
  for (const std::string& word : arguments)
    script += " '" + word + "'";
  const int status = std::system((script + " >/dev/null 2>&1").c_str());
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 1);
  for (const auto& entry : fs::directory_iterator(run)) {
    EXPECT_NE(entry.path().filename().string().rfind(".tmp", 0), 0u) << entry.path();
  }
}

TEST(Signals, Int_InGenerate) {
  Program program({"generate", "--ckpt", testing::trained_run().string(), "--prompt", "The ",
                   "--max-new-tokens", "10000000", "--temperature", "2"});
  ASSERT_TRUE(program.wait_for("The "));
  program.send(SIGINT);
  const ProgramResult result = program.finish(60);
  EXPECT_EQ(result.exit_code, 130) << result.err;
}

TEST(Signals, Term_InOverfitAndBench) {
  Program overfit({"overfit", "--target", "0.0000001", "--steps", "1000000", "--backend", "auto"});
  ASSERT_TRUE(overfit.wait_for("step    1"));
  overfit.send(SIGTERM);
  EXPECT_EQ(overfit.finish(60).exit_code, 143);
  Program bench({"bench", "--seconds", "20", "--no-model", "--threads", "1"});
  ASSERT_TRUE(bench.wait_for("operator"));
  bench.send(SIGTERM);
  EXPECT_EQ(bench.finish(120).exit_code, 143);
}

}  // namespace
}  // namespace kda::cli
