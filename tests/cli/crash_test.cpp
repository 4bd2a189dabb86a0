#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "cli/world.h"
#include "io/jsonl_log.h"

namespace kda::cli {
namespace {

namespace fs = std::filesystem;
using testing::fresh_folder;
using testing::kda;
using testing::Program;
using testing::ProgramResult;
using testing::train_arguments;

TEST(Crash, KilledAtRandomMoments_AlwaysHasASoundCheckpoint) {
  const fs::path run = fresh_folder("crash") / "run";
  std::vector<std::string> arguments = train_arguments(run, 100000, {"--save-every", "1u"});
  arguments.emplace_back("--auto-resume");
  std::mt19937 random(4711);
  std::int64_t last_step = 0;
  for (int round = 0; round < 20; ++round) {
    Program program(arguments);
    // Every step saves: from the first line on, a kill nearly always falls into a save.
    ASSERT_TRUE(program.wait_for("saved ", 60)) << program.finish(1).err;
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 60));
    program.send(SIGKILL);
    const ProgramResult result = program.finish(30);
    ASSERT_EQ(result.exit_code, -SIGKILL);

    // All metrics up to a torn line are valid, and the step numbers never go back.
    std::int64_t step = 0;
    for (const io::Json& record : io::read_jsonl(run / "metrics.jsonl")) {
      if (record.at("kind") != "step") continue;
      EXPECT_EQ(record.at("step").get<std::int64_t>(), step + 1);
      step = record.at("step").get<std::int64_t>();
    }
    EXPECT_GE(step, last_step);
    last_step = step - 1;
  }
  EXPECT_EQ(
      kda({"generate", "--ckpt", run.string(), "--prompt", "x", "--max-new-tokens", "2"}).exit_code,
      0);
  // A clean stop removes what the killed processes left.
  std::vector<std::string> finish = arguments;
  const ProgramResult done =
      kda({"train", "--resume", run.string(), "--stop-after", std::to_string(last_step + 5)});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  for (const auto& entry : fs::directory_iterator(run)) {
    EXPECT_NE(entry.path().filename().string().rfind(".tmp", 0), 0u) << entry.path();
  }
  EXPECT_EQ(kda({"ckpt", "verify", run.string()}).exit_code, 0);
}

TEST(Crash, FullDisk_KeepsThePreviousCheckpointAndLeavesNoLitter) {
  const fs::path folder = fresh_folder("full");
  const ProgramResult whole = kda(train_arguments(folder / "free", 2, {"--save-every", "1u"}));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  std::uintmax_t checkpoint = 0;
  for (const auto& entry : fs::directory_iterator(folder / "free/step-000001")) {
    checkpoint += entry.file_size();
  }
  int failed_saves = 0;
  for (const double share : {1.1, 1.4, 1.7, 2.05}) {
    const fs::path run = folder / ("run-" + std::to_string(share));
    const auto bytes = static_cast<std::uintmax_t>(share * static_cast<double>(checkpoint));
    const ProgramResult result =
        kda(train_arguments(run, 3, {"--save-every", "1u"}),
            {"", {{"LD_PRELOAD", KDA_FULL_DISK}, {"KDA_TEST_DISK_BYTES", std::to_string(bytes)}}});
    EXPECT_EQ(result.exit_code, 1) << share << result.out << result.err;
    EXPECT_NE(result.err.find("No space left on device"), std::string::npos) << result.err;
    if (result.err.find("was not saved") != std::string::npos) {
      ++failed_saves;
      EXPECT_NE(result.err.find("last good checkpoint"), std::string::npos) << result.err;
    }
    for (const auto& entry : fs::directory_iterator(run)) {
      EXPECT_NE(entry.path().filename().string().rfind(".tmp", 0), 0u) << entry.path();
    }
    EXPECT_EQ(kda({"ckpt", "verify", run.string()}).exit_code, 0) << share;
    const ProgramResult resumed = kda({"train", "--resume", run.string()});
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  }
  EXPECT_GE(failed_saves, 3);
}

/// Takes a file system away again, whatever the test said.
struct Unmounted {
  fs::path at;
  ~Unmounted() { ::umount2(at.c_str(), MNT_DETACH); }
};

/// A file system that really is too small, in place of a write that says so: creating files and
/// folders, syncing and renaming fail as they do on a full disk.
TEST(Crash, FullFileSystem_KeepsThePreviousCheckpoint) {
  const fs::path folder = fresh_folder("tmpfs");
  const ProgramResult whole = kda(train_arguments(folder / "free", 1));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  std::uintmax_t checkpoint = 0;
  for (const auto& entry : fs::directory_iterator(folder / "free/step-000001")) {
    checkpoint += entry.file_size();
  }
  const fs::path disk = folder / "disk";
  fs::create_directories(disk);
  for (const double share : {1.5, 2.2}) {
    SCOPED_TRACE(share);
    const auto bytes = static_cast<std::uintmax_t>(share * static_cast<double>(checkpoint));
    const std::string size = "size=" + std::to_string(bytes);
    if (::mount("kda-test", disk.c_str(), "tmpfs", 0, size.c_str()) != 0) {
      GTEST_SKIP() << "mounting a tmpfs needs root: " << std::strerror(errno);
    }
    const Unmounted at_the_end{disk};
    const fs::path run = disk / "run";
    const ProgramResult result = kda(train_arguments(run, 9, {"--save-every", "1u"}));
    EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
    EXPECT_NE(result.err.find("No space left on device"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("last good checkpoint"), std::string::npos) << result.err;
    EXPECT_EQ(kda({"ckpt", "verify", run.string()}).exit_code, 0);
    for (const auto& entry : fs::directory_iterator(run)) {
      EXPECT_NE(entry.path().filename().string().rfind(".tmp", 0), 0u) << entry.path();
    }
    // With room again the run goes on from there.
    const std::string more = "size=" + std::to_string(64 * checkpoint);
    ASSERT_EQ(::mount("kda-test", disk.c_str(), "tmpfs", MS_REMOUNT, more.c_str()), 0);
    const ProgramResult resumed = kda({"train", "--resume", run.string()});
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  }
}

TEST(Crash, FullStandardOutput_IsNotSuccess) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  const std::string command = std::string(KDA_PROGRAM) + " doctor > /dev/full 2> /dev/null";
  const int status = std::system(command.c_str());  // NOLINT: the shell is the redirection
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

/// What is said about a text is said when the text is out: an error alone, no statistics.
TEST(Crash, FullStandardOutput_StopsGenerateBeforeItsStatistics) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  const fs::path said = fresh_folder("full-generate") / "err.txt";
  const std::string command =
      std::string(KDA_PROGRAM) + " generate --ckpt '" + testing::trained_run().string() +
      "' --prompt The --max-new-tokens 4 > /dev/full 2> '" + said.string() + "'";
  const int status = std::system(command.c_str());  // NOLINT: the shell is the redirection
  EXPECT_EQ(WEXITSTATUS(status), 1);
  std::ifstream file(said);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_NE(text.find("cannot write to standard output: No space left"), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

TEST(Crash, TwoTrainersInOneFolder_TheSecondIsRefused) {
  const fs::path run = fresh_folder("two") / "run";
  Program first(train_arguments(run, 100000));
  ASSERT_TRUE(first.wait_for("step      1/"));
  std::vector<std::string> arguments = train_arguments(run, 5);
  testing::expect_error(kda(arguments), 1, "train", {"in use"});
  first.send(SIGTERM);
  EXPECT_EQ(first.finish(60).exit_code, 143);
}

}  // namespace
}  // namespace kda::cli
