#include "cli/world.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace kda::cli::testing {
namespace fs = std::filesystem;
namespace {

struct Scratch {
  Scratch() : path(fs::temp_directory_path() / ("kda-cli-test-" + std::to_string(::getpid()))) {
    fs::create_directories(path);
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  fs::path path;
};

std::string sentences(int count, int offset, bool chinese) {
  const char* zh[] = {"小猫在山上睡觉", "老师走过那座桥", "程序打开一扇门", "河水读一本书"};
  const char* en[] = {"The clerk reads the old map", "A stone remembers nothing",
                      "Our cat crosses a river", "This file opens two letters"};
  std::string text;
  for (int i = 0; i < count; ++i) {
    const int n = i + offset;
    text += chinese ? std::string(zh[n % 4]) + "，第" + std::to_string(n) + "次。\n\n"
                    : std::string(en[n % 4]) + ", time " + std::to_string(n) + ".\n\n";
  }
  return text;
}

}  // namespace

const fs::path& scratch() {
  static const Scratch made;
  return made.path;
}

fs::path fresh_folder(const std::string& name) {
  const fs::path path = scratch() / name;
  fs::remove_all(path);
  fs::create_directories(path);
  return path;
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

const fs::path& corpus() {
  static const fs::path folder = [] {
    const fs::path path = fresh_folder("corpus");
    write_text(path / "pretrain.zh.txt", sentences(120, 0, true));
    write_text(path / "pretrain.en.txt", sentences(120, 0, false));
    write_text(path / "heldout.txt", sentences(20, 500, true) + sentences(20, 500, false));
    return path;
  }();
  return folder;
}

const fs::path& tokenizer_file() {
  static const fs::path file = [] {
    const fs::path path = scratch() / "spm.model";
    const ProgramResult result = kda({"tokenizer", "train", "--data", corpus().string(),
                                      "--vocab-size", "380", "--out", path.string()});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return path;
  }();
  return file;
}

const fs::path& trained_run() {
  static const fs::path run = [] {
    const fs::path path = scratch() / "run";
    const ProgramResult result =
        kda(train_arguments(path, 30, {"--eval-every", "10u", "--save-every", "10u"}));
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    return path;
  }();
  return run;
}

std::vector<std::string> train_arguments(const fs::path& out, int steps,
                                         const std::vector<std::string>& more) {
  std::vector<std::string> words{"train",
                                 "--preset",
                                 "tiny",
                                 "--data",
                                 corpus().string(),
                                 "--tokenizer",
                                 tokenizer_file().string(),
                                 "--out",
                                 out.string(),
                                 "--steps",
                                 std::to_string(steps),
                                 "--batch",
                                 "2",
                                 "--seq-len",
                                 "32",
                                 "--lr",
                                 "3e-3",
                                 "--threads",
                                 "1",
                                 "--device",
                                 "cpu",
                                 "--log-every",
                                 "1u"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

void expect_error(const ProgramResult& result, int exit_code, const std::string& verb,
                  const std::vector<std::string>& parts) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  const std::string start = "kda" + (verb.empty() ? "" : " " + verb) + ": error: ";
  EXPECT_EQ(result.err.rfind(start, 0), 0u) << "expected '" << start << "...', got: " << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  for (const std::string& part : parts) {
    EXPECT_NE(result.err.find(part), std::string::npos)
        << "expected '" << part << "' in: " << result.err;
  }
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace kda::cli::testing
