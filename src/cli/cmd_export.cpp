#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/python_tool.h"

namespace kda::cli {

void add_export_flores(CLI::App& app) {
  CLI::App* verb = add_verb(app, "export-flores",
                            "Evaluation sets from your own copy of FLORES (options: kda "
                            "export-flores --help)");
  verb->set_help_flag();  // --help, like all else, goes to the Python tool
  verb->prefix_command();
  on_run(verb, [verb]() -> int {
    std::vector<std::string> arguments{"export-flores"};
    for (const std::string& word : verb->remaining())
      arguments.push_back(word);
    exec_python_module("kda.evaluation", arguments, "kda export-flores");
  });
}

}  // namespace kda::cli
