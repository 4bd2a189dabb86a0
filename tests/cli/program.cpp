#include "cli/program.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <stdexcept>

extern char** environ;  // NOLINT: POSIX says so

namespace kda::cli::testing {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void make_pipe(int (&ends)[2]) {
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
}

}  // namespace

Program::Program(const std::vector<std::string>& arguments, const ProgramOptions& options) {
  int in[2];
  int out[2];
  int err[2];
  make_pipe(in);
  make_pipe(out);
  make_pipe(err);
  std::vector<std::string> words{KDA_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry)
    variables.emplace_back(*entry);
  for (const auto& [name, value] : options.environment)
    variables.push_back(name + "=" + value);
  std::vector<char*> envp;
  for (std::string& variable : variables)
    envp.push_back(variable.data());
  envp.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
  const int status = ::posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), envp.data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(in[0]);
  ::close(out[1]);
  ::close(err[1]);
  out_ = out[0];
  err_ = err[0];
  if (status != 0) throw std::runtime_error("cannot start " KDA_PROGRAM);
  // Inputs of tests are shorter than a pipe's buffer.
  if (!options.input.empty() && ::write(in[1], options.input.data(), options.input.size()) !=
                                    static_cast<ssize_t>(options.input.size())) {
    throw std::runtime_error("cannot write the program's input");
  }
  ::close(in[1]);
}

Program::~Program() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (out_ >= 0) ::close(out_);
  if (err_ >= 0) ::close(err_);
}

/// Reads what is there; false when both ends are closed.
bool Program::pump(int timeout_ms) {
  pollfd ends[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
  if (::poll(ends, 2, timeout_ms) < 0) return true;
  char buffer[8192];
  const auto take = [&](pollfd& end, int& fd, std::string& text) {
    if (fd < 0 || (end.revents & (POLLIN | POLLHUP)) == 0) return;
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n > 0) {
      text.append(buffer, static_cast<std::size_t>(n));
    } else {
      ::close(fd);
      fd = -1;
    }
  };
  take(ends[0], out_, result_.out);
  take(ends[1], err_, result_.err);
  return out_ >= 0 || err_ >= 0;
}

bool Program::wait_for(const std::string& needle, double seconds) {
  const auto start = Clock::now();
  while (result_.out.find(needle) == std::string::npos) {
    if (seconds_since(start) > seconds || !pump(100)) {
      return result_.out.find(needle) != std::string::npos;
    }
  }
  return true;
}

void Program::send(int signal_number) { ::kill(pid_, signal_number); }

ProgramResult Program::finish(double seconds) {
  const auto start = Clock::now();
  while (pump(100)) {
    if (seconds_since(start) > seconds) {
      ::kill(pid_, SIGKILL);
      result_.err += "\n[killed by the test: too slow]\n";
    }
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  result_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return result_;
}

ProgramResult kda(const std::vector<std::string>& arguments, const ProgramOptions& options) {
  return Program(arguments, options).finish();
}

}  // namespace kda::cli::testing
