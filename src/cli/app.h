/// How verbs are registered and run, and how their failures become one line and an exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace kda::cli {

/// Exit codes of the program (docs/cli.md).
enum ExitCode : int {
  kDone = 0,
  kFailed = 1,            ///< a file, the disk, memory, a broken invariant
  kUsage = 2,             ///< a wrong flag or value
  kUnsupportedOrNan = 3,  ///< a legal request that cannot be served, or a stop on NaN or infinity
  kSignalBase = 128,      ///< + signal number: 130 SIGINT, 143 SIGTERM, 129 SIGHUP
};

/// A verb with its help text. `examples` are shown under the options, one per line.
CLI::App* add_verb(CLI::App& parent, const std::string& name, const std::string& description,
                   const std::string& examples = {});

/// What the verb does once parsing is over; returns an exit code.
void on_run(CLI::App* verb, std::function<int()> action);

/// Parses, runs, reports. Never throws.
int run_program(CLI::App& app, int argc, const char* const* argv);

/// Nearest of `known` for "did you mean", or "".
std::string nearest(const std::string& word, const std::vector<std::string>& known);

// One per cmd_<verb>.cpp.
void add_bench(CLI::App& app);
void add_ckpt(CLI::App& app);
void add_completion(CLI::App& app);
void add_data(CLI::App& app);
void add_doctor(CLI::App& app);
void add_eval(CLI::App& app);
void add_export_flores(CLI::App& app);
void add_extract(CLI::App& app);
void add_generate(CLI::App& app);
void add_monitor(CLI::App& app);
void add_overfit(CLI::App& app);
void add_sft(CLI::App& app);
void add_tokenizer(CLI::App& app);
void add_trace(CLI::App& app);
void add_train(CLI::App& app);
void add_view(CLI::App& app);

}  // namespace kda::cli
