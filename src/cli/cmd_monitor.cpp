#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/python_tool.h"

namespace kda::cli {
namespace {

/// A verb whose words, --help among them, go to a Python tool as they are.
void add_python_verb(CLI::App& app, const std::string& name, const std::string& description,
                     const std::string& module) {
  CLI::App* verb = add_verb(app, name, description + " (options: kda " + name + " --help)");
  verb->set_help_flag();
  verb->prefix_command();
  on_run(verb, [verb, name, module]() -> int {
    exec_python_module(module, verb->remaining(), "kda " + name);
  });
}

}  // namespace

void add_monitor(CLI::App& app) {
  add_python_verb(app, "monitor", "Show runs in TensorBoard, SwanLab or Weights & Biases",
                  "kda.monitor");
  add_python_verb(app, "report", "One HTML page about one or several runs, for comparison",
                  "kda.monitor.report");
}

}  // namespace kda::cli
