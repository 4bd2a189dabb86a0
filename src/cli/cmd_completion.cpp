#include <cstdio>
#include <memory>
#include <string>

#include "cli/app.h"
#include "cli/completion.h"

namespace kda::cli {

void add_completion(CLI::App& app) {
  CLI::App* verb = add_verb(app, "completion", "Tab completion for bash, zsh or fish",
                            "  eval \"$(kda completion bash)\"             # in ~/.bashrc\n"
                            "  source <(kda completion zsh)              # in ~/.zshrc\n"
                            "  kda completion fish | source              # in config.fish\n"
                            "  kda completion bash > /usr/share/bash-completion/completions/kda");
  auto shell = std::make_shared<std::string>();
  verb->add_option("shell", *shell, "bash, zsh or fish")->type_name("SHELL")->required();
  on_run(verb, [&app, shell] {
    std::fputs(completion_script(completion_verbs(app), *shell).c_str(), stdout);
    return kDone;
  });
}

}  // namespace kda::cli
