#include "cli/python_tool.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cli/build_info.h"
#include "kda/error.h"

namespace kda::cli {
namespace fs = std::filesystem;
namespace {

std::string interpreter() {
  if (const char* chosen = std::getenv("KDA_PYTHON"); chosen != nullptr && *chosen != '\0') {
    return chosen;
  }
  if (fs::exists(kPython)) return kPython;
  return "python3";
}

/// The folder that holds the package `kda`.
fs::path package_root() {
  std::error_code status;
  const fs::path program = fs::read_symlink("/proc/self/exe", status);
  const fs::path bin = program.parent_path();
  const fs::path candidates[] = {
      bin / ".." / "share" / "kda" / "python",  // installed
      bin / ".." / ".." / ".." / "python",      // build/<preset>/bin in the tree
      fs::path(kSourceFolder) / "python",
  };
  for (const fs::path& candidate : candidates) {
    if (fs::exists(candidate / "kda" / "corpus" / "__main__.py")) {
      return fs::weakly_canonical(candidate, status);
    }
  }
  throw Error(ErrorCode::kIo, "the Python package kda.corpus was not found beside " +
                                  program.string() + " or in " + kSourceFolder + "/python");
}

}  // namespace

void exec_python_module(const std::string& module, const std::vector<std::string>& arguments) {
  const std::string python = interpreter();
  std::string path = package_root().string();
  if (const char* old = std::getenv("PYTHONPATH"); old != nullptr && *old != '\0') {
    path += std::string(":") + old;
  }
  ::setenv("PYTHONPATH", path.c_str(), 1);
  ::setenv("KDA_PROGRAM", "kda data", 1);  // how its help and errors name it
  std::vector<std::string> words{python, "-m", module};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);
  std::fflush(stdout);
  ::execvp(python.c_str(), argv.data());
  throw Error(ErrorCode::kIo, "cannot start " + python + ": " + std::strerror(errno) +
                                  " (set KDA_PYTHON to an interpreter, or run `make setup`)");
}

}  // namespace kda::cli
