#include "cli/python_tool.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

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

/// The words of `python -m module arguments...`; sets what the interpreter needs to find.
std::vector<std::string> prepare(const std::string& module,
                                 const std::vector<std::string>& arguments) {
  std::string path = package_root().string();
  if (const char* old = std::getenv("PYTHONPATH"); old != nullptr && *old != '\0') {
    path += std::string(":") + old;
  }
  ::setenv("PYTHONPATH", path.c_str(), 1);
  std::vector<std::string> words{interpreter(), "-m", module};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (std::string& word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);
  return argv;
}

std::string cannot_start(const std::string& python, int code) {
  return "cannot start " + python + ": " + std::strerror(code) +
         " (set KDA_PYTHON to an interpreter, or run `make setup`)";
}

/// The last line that says something, without "PROGRAM: error: ".
std::string last_line(std::string text) {
  text.erase(text.find_last_not_of(" \n\r\t") + 1);
  text.erase(0, text.rfind('\n') + 1);
  constexpr std::string_view kMark = ": error: ";
  const std::size_t at = text.find(kMark);
  return at == std::string::npos ? text : text.substr(at + kMark.size());
}

constexpr int kCannotExec = 127;

}  // namespace

void exec_python_module(const std::string& module, const std::vector<std::string>& arguments,
                        const std::string& verb) {
  std::vector<std::string> words = prepare(module, arguments);
  const std::vector<char*> argv = pointers(words);
  ::setenv("KDA_PROGRAM", verb.c_str(), 1);
  std::fflush(stdout);
  ::execvp(argv.front(), argv.data());
  throw Error(ErrorCode::kIo, cannot_start(words.front(), errno));
}

void run_python_module(const std::string& module, const std::vector<std::string>& arguments,
                       const std::string& what) {
  std::vector<std::string> words = prepare(module, arguments);
  const std::vector<char*> argv = pointers(words);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(ErrorCode::kIo, what + ": no pipe: " + std::strerror(errno));
  }
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    // Only calls that are safe between fork and exec in a program with threads.
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    ::execvp(argv.front(), argv.data());
    ::_exit(kCannotExec);
  }
  const int fork_code = errno;
  ::close(ends[1]);
  std::string said;
  char buffer[4096];
  while (child > 0) {
    const ssize_t count = ::read(ends[0], buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    said.append(buffer, static_cast<std::size_t>(count));
  }
  ::close(ends[0]);
  if (child < 0) throw Error(ErrorCode::kIo, what + ": cannot fork: " + std::strerror(fork_code));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kCannotExec && said.empty()) {
    throw Error(ErrorCode::kIo, what + ": " + cannot_start(words.front(), ENOENT));
  }
  const std::string reason = last_line(said);
  throw Error(ErrorCode::kIo, what + ": " + (reason.empty() ? "the Python tool failed" : reason));
}

}  // namespace kda::cli
