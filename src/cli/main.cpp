#include "cli/app.h"
#include "cli/build_info.h"
#include "cli/help_formatter.h"

namespace {

std::string version_text() {
  using namespace kda::cli;
  return std::string("kda ") + kVersion + " (commit " + kCommit + ")\ntorch " + kTorchVersion +
         " (CUDA " + kTorchCuda + "), " + kCompiler + ", " + kBuildType + ", flags: " + kCxxFlags +
         "\nCUDA backend: " + kCudaBackend + ", sanitizers: " + kSanitizers;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Kimi Delta Attention: train, inspect and run a small language model", "kda");
  app.formatter(std::make_shared<kda::cli::HelpFormatter>());
  app.set_version_flag("--version", version_text(), "Version, commit, torch, build flags");
  app.require_subcommand(1);
  // The last of several wins, so that a script's flags can be overridden by adding to its end.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.footer(
      "Start here:\n"
      "  kda data build --preset tiny --out data/tiny\n"
      "  kda tokenizer train --data data/tiny --vocab-size 1024 --out data/tiny/spm\n"
      "  kda train --data data/tiny --tokenizer data/tiny/spm.model --steps 200 --out runs/first\n"
      "  kda generate --ckpt runs/first --prompt \"The file \"\n"
      "\n"
      "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 unsupported or stopped on NaN,\n"
      "            129/130/143 stopped by SIGHUP/SIGINT/SIGTERM (after saving).\n"
      "kda COMMAND --help has the options and examples of each command.");
  kda::cli::add_data(app);
  kda::cli::add_tokenizer(app);
  kda::cli::add_train(app);
  kda::cli::add_sft(app);
  kda::cli::add_eval(app);
  kda::cli::add_export_flores(app);
  kda::cli::add_generate(app);
  kda::cli::add_trace(app);
  kda::cli::add_extract(app);
  kda::cli::add_ckpt(app);
  kda::cli::add_view(app);
  kda::cli::add_monitor(app);
  kda::cli::add_overfit(app);
  kda::cli::add_bench(app);
  kda::cli::add_doctor(app);
  kda::cli::add_completion(app);
  return kda::cli::run_program(app, argc, argv);
}
