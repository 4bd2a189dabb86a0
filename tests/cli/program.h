/// Starts the program, feeds it, reads it, kills it.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace kda::cli::testing {

struct ProgramResult {
  int exit_code = -1;  ///< -N: killed by signal N
  std::string out;
  std::string err;
};

struct ProgramOptions {
  std::string input;  ///< standard input
  std::map<std::string, std::string> environment;
};

/// A process of the program, killed when the object goes.
class Program {
 public:
  explicit Program(const std::vector<std::string>& arguments, const ProgramOptions& options = {});
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// Reads until standard output holds `needle`; false at its end or after `seconds`.
  bool wait_for(const std::string& needle, double seconds = 120);
  void send(int signal_number);
  /// Reads to the end and reaps.
  ProgramResult finish(double seconds = 300);

 private:
  bool pump(int timeout_ms);

  pid_t pid_ = -1;
  int out_ = -1;
  int err_ = -1;
  ProgramResult result_;
};

/// Runs to the end.
ProgramResult kda(const std::vector<std::string>& arguments, const ProgramOptions& options = {});

}  // namespace kda::cli::testing
