#include "cli/app.h"
#include "cli/training_verb.h"

namespace kda::cli {

void add_sft(CLI::App& app) {
  CLI::App* verb = add_verb(
      app, "sft", "Fine-tune a model on prompts and answers, e.g. to translate",
      "  kda sft --ckpt runs/k3 --data data/debian-small --epochs 2 --out runs/translator\n"
      "  kda sft --ckpt runs/k3 --data mine.jsonl --epochs 3 --out runs/mine \\\n"
      "      --src eval.zh --ref eval.en --target-lang en\n"
      "  kda sft --resume runs/translator\n"
      "\n"
      "Lines of the data: {\"src\", \"tgt\", \"direction\": \"en2zh\" or \"zh2en\"} or\n"
      "{\"instruction\", \"input\", \"output\"}. `kda data build` writes such a file.\n"
      "Documents: docs/training.md");
  add_training_verb(verb, train::sft_defaults());
}

}  // namespace kda::cli
