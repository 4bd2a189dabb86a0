/// What is on disk after kill -9, a full disk and a read-only folder.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <functional>

#include "io/atomic_file.h"
#include "io/io_test_support.h"
#include "io/jsonl_log.h"
#include "io/manifest.h"
#include "io/safetensors_writer.h"

namespace kda::io {
namespace {

using test::get;
using test::put;
using test::TempFolder;

/// Runs `action` in a child process; its result is the exit code.
pid_t fork_child(const std::function<int()>& action) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    int code = 99;
    try {
      code = action();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "child: %s\n", e.what());
    }
    ::_exit(code);
  }
  return pid;
}

int wait_for(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void sleep_us(long microseconds) {
  const timespec time{0, microseconds * 1000};
  ::nanosleep(&time, nullptr);
}

/// A folder on a full-able file system of one MiB, in a mount namespace of the child. Returns false
/// where the system does not allow that.
bool mount_tiny(const std::filesystem::path& where) {
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  return ::mount("none", where.c_str(), "tmpfs", 0, "size=1m") == 0;
}

constexpr int kNotAllowed = 77;

TEST(Crash_Kill9DuringSave, OldOrNewFileNeverHalf) {
  const TempFolder folder;
  const auto path = folder / "model.safetensors";
  const std::vector<float> ones(1u << 16, 1.0F);
  const auto save = [&] {
    SafetensorsWriter writer(path, {{"w", StDtype::kF32, {1 << 16}}});
    writer.write_tensor("w", test::bytes_of(ones));
    writer.commit();
  };
  save();
  const auto size = std::filesystem::file_size(path);
  int killed = 0;
  for (int round = 0; round < 50; ++round) {
    const pid_t pid = fork_child([&] {
      for (;;)
        save();
      return 0;
    });
    sleep_us(200 + 137 * round);  // spread over the phases of a save
    ::kill(pid, SIGKILL);
    killed += wait_for(pid) == -SIGKILL ? 1 : 0;
    const auto file = SafetensorsFile::open(path);
    ASSERT_EQ(file.info("w").num_elements(), 1 << 16);
    ASSERT_EQ(std::filesystem::file_size(path), size);
    remove_temporary_files(folder.path());
    ASSERT_EQ(folder.names(), std::vector<std::string>{"model.safetensors"});
  }
  EXPECT_EQ(killed, 50);
}

TEST(Crash_Kill9DuringLog, WholeLinesOnly) {
  const TempFolder folder;
  const auto path = folder / "metrics.jsonl";
  for (int round = 0; round < 10; ++round) {
    const pid_t pid = fork_child([&] {
      JsonlLog log(path);
      for (std::int64_t step = 0;; ++step)
        log.append({{"step", step}, {"text", std::string(300, 'x')}});
      return 0;
    });
    while (!std::filesystem::exists(path))  // the first child has yet to start
      sleep_us(100);
    sleep_us(2000 + 511 * round);
    ::kill(pid, SIGKILL);
    wait_for(pid);
    for (const auto& line : read_jsonl(path))
      ASSERT_EQ(line["text"].get<std::string>().size(), 300u);
    JsonlLog(path).sync();  // opening removes what a kill between two pages of a write leaves
    const std::string text = get(path);
    if (!text.empty()) {
      ASSERT_EQ(text.back(), '\n');
    }
  }
}

TEST(Crash_DiskFull, OneErrorAndNoLitter) {
  const TempFolder folder;
  const int code = wait_for(fork_child([&] {
    if (!mount_tiny(folder.path())) return kNotAllowed;
    put(folder / "old", "precious");
    const std::string big(4u << 20, 'x');
    try {
      write_file_atomic(folder / "old", big);
      return 1;
    } catch (const Error& e) {
      const std::string text = e.what();
      if (e.code() != ErrorCode::kIo || text.find("No space left") == std::string::npos ||
          text.find("old") == std::string::npos) {
        return 2;
      }
    }
    if (get(folder / "old") != "precious") return 3;
    if (folder.names() != std::vector<std::string>{"old"}) return 4;
    return 0;
  }));
  if (code == kNotAllowed) GTEST_SKIP() << "no permission to mount a tmpfs";
  EXPECT_EQ(code, 0);
}

TEST(Crash_DiskFull, LogTakesBackAShortLine) {
  const TempFolder folder;
  const int code = wait_for(fork_child([&] {
    if (!mount_tiny(folder.path())) return kNotAllowed;
    JsonlLog log(folder / "log.jsonl");
    const Json line = {{"step", 1}, {"text", std::string(5000, 'x')}};
    int lines = 0;
    try {
      for (;; ++lines)
        log.append(line);
    } catch (const Error& e) {
      if (std::string(e.what()).find("No space left") == std::string::npos) return 2;
    }
    const std::string text = get(folder / "log.jsonl");
    if (text.empty() || text.back() != '\n') return 3;
    return read_jsonl(folder / "log.jsonl").size() == static_cast<std::size_t>(lines) ? 0 : 4;
  }));
  if (code == kNotAllowed) GTEST_SKIP() << "no permission to mount a tmpfs";
  EXPECT_EQ(code, 0);
}

TEST(Crash_FileSizeLimit, IsReportedAtEveryStep) {
  // RLIMIT_FSIZE stands in for a full disk where nothing can be mounted.
  const TempFolder folder;
  const auto run = [&](const std::function<void()>& action) {
    return wait_for(fork_child([&] {
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{1 << 16, 1 << 16};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      try {
        action();
        return 1;
      } catch (const Error& e) {
        const std::string text = e.what();
        const bool good =
            e.code() == ErrorCode::kIo && text.find("File too large") != std::string::npos;
        return good && folder.names().empty() ? 0 : 2;
      }
    }));
  };
  EXPECT_EQ(run([&] { write_file_atomic(folder / "a", std::string(100'000, 'x')); }), 0);
  EXPECT_EQ(run([&] { write_file_atomic(folder / "a", std::string(3u << 20, 'x')); }), 0);
  EXPECT_EQ(run([&] {
              AtomicFile file(folder / "a");
              file.write(std::string(100'000, 'x'));
              file.overwrite(0, test::bytes_of(std::string_view("y")));
            }),
            0);
}

TEST(Crash_ReadOnlyFolder, OneErrorAndNoLitter) {
  const TempFolder folder;
  put(folder / "old", "precious");
  const int code = wait_for(fork_child([&] {
    // Root may write anywhere, so the folder is mounted read-only where that is allowed.
    if (::geteuid() == 0) {
      if (::unshare(CLONE_NEWNS) != 0 ||
          ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          ::mount(folder.path().c_str(), folder.path().c_str(), nullptr, MS_BIND, nullptr) != 0 ||
          ::mount("none", folder.path().c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY,
                  nullptr) != 0) {
        return kNotAllowed;
      }
    } else {
      std::filesystem::permissions(
          folder.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
    }
    try {
      write_file_atomic(folder / "old", "new");
      return 1;
    } catch (const Error& e) {
      const std::string text = e.what();
      if (e.code() != ErrorCode::kIo || text.find("old") == std::string::npos) return 2;
    }
    return folder.names() == std::vector<std::string>{"old"} && get(folder / "old") == "precious"
               ? 0
               : 3;
  }));
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_all);
  if (code == kNotAllowed) GTEST_SKIP() << "no permission to mount";
  EXPECT_EQ(code, 0);
}

TEST(Crash_DevFull, LogNamesTheReason) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  JsonlLog log("/dev/full");
  test::expect_error(ErrorCode::kIo, {"/dev/full", "No space left"}, [&] {
    log.append({{"step", 1}});
  });
}

TEST(Crash_Kill9DuringCheckpoint, ManifestMeansComplete) {
  const TempFolder folder;
  const std::string payload(1u << 18, 'p');
  int complete = 0;
  for (int round = 0; round < 30; ++round) {
    const auto step = folder / ("step" + std::to_string(round));
    const pid_t pid = fork_child([&] {
      std::filesystem::create_directory(step);
      write_file_atomic(step / "a.bin", payload);
      write_file_atomic(step / "b.bin", payload);
      write_manifest(step, "checkpoint", {"a.bin", "b.bin"}, {{"step", 1}});
      return 0;
    });
    sleep_us(150 * round);
    ::kill(pid, SIGKILL);
    wait_for(pid);
    if (!std::filesystem::exists(step / kManifestName)) continue;
    ++complete;
    EXPECT_TRUE(verify_manifest(step, read_manifest(step), VerifyLevel::kHashes).empty());
  }
  SUCCEED() << complete << " of 30 were complete";
}

}  // namespace
}  // namespace kda::io
