#include "cli/app.h"
#include "cli/training_verb.h"

namespace kda::cli {

void add_train(CLI::App& app) {
  CLI::App* verb = add_verb(
      app, "train", "Train a language model on text, or continue a run",
      "  kda train --data data/tiny --tokenizer data/tiny/spm.model --steps 200 --out runs/first\n"
      "  kda train --resume runs/first --steps 400          # goes on exactly where it stopped\n"
      "  kda train --data my.txt --tokenizer spm.model --max-tokens 8.2M --dtype bf16 --out "
      "runs/b\n"
      "  kda train --preset k3-0.5b --attnres block --device cuda --config run.toml --out runs/k3\n"
      "  kda train --config runs/first/config.json --lr 1e-3 --out runs/c\n"
      "\n"
      "Budgets: 500u (optimizer steps), 2Mt (tokens), 3e (epochs). Periods: the same, or off.\n"
      "Ctrl-C, SIGTERM and SIGHUP save within one micro-batch and leave with 130, 143, 129.\n"
      "Documents: docs/training.md");
  add_training_verb(verb, {});
}

}  // namespace kda::cli
