#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <random>
#include <string>

#include "binding/functional.h"
#include "cli/app.h"
#include "cli/console.h"
#include "cli/model_loading.h"
#include "cli/number_option.h"
#include "io/atomic_file.h"
#include "io/utf8.h"
#include "kda/error.h"
#include "train/sample_text.h"
#include "train/signals.h"
#include "train/units.h"

namespace kda::cli {
namespace {

struct GenerateCommand {
  LoadModelOptions load;
  std::string prompt;
  std::string prompt_file;
  bool has_prompt = false;
  double temperature = 0.8;
  bool greedy = false;
  std::int64_t top_k = 0;
  double top_p = 1.0;
  std::int64_t seed = 1;
  std::int64_t max_new_tokens = 128;
  std::int64_t samples = 1;
  int threads = 0;
  bool quiet = false;
};

std::string read_stdin() {
  std::string text{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  return text;
}

/// The prompt, from the one place that was named. A final newline of a file or pipe is dropped: it
/// comes from the editor, not from the author.
std::string prompt_of(const GenerateCommand& command) {
  if (command.has_prompt && !command.prompt_file.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--prompt and --prompt-file exclude each other: give one");
  }
  if (command.has_prompt) return command.prompt;
  std::string text;
  if (!command.prompt_file.empty() && command.prompt_file != "-") {
    text = io::read_file(command.prompt_file);
  } else {
    if (command.prompt_file.empty() && ::isatty(STDIN_FILENO) == 1) return {};
    text = read_stdin();
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

int run_generate(const GenerateCommand& command) {
  train::TextSampleOptions how;
  how.sampling.temperature = command.greedy ? 0.0 : command.temperature;
  how.sampling.top_k = command.top_k;
  how.sampling.top_p = command.top_p;
  how.max_new_tokens = command.max_new_tokens;
  std::uint64_t seed = static_cast<std::uint64_t>(command.seed);
  if (command.seed < 0) seed = std::random_device{}();
  how.sampling.seed = seed;
  how.sampling.validate();

  const train::SignalScope signals;
  binding::set_num_threads(command.threads);
  const std::string prompt = prompt_of(command);
  // Before anything is printed: the prompt is the first part of the output.
  if (const auto bad = io::find_invalid_utf8(prompt); bad != prompt.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(command.has_prompt ? "--prompt" : "--prompt-file") +
                    ": expected UTF-8, byte " + std::to_string(bad + 1) + " of " +
                    std::to_string(prompt.size()) + " is not");
  }
  const LoadedModel loaded = load_for_use(command.load, "generate");
  for (std::int64_t i = 0; i < command.samples; ++i) {
    how.row = static_cast<std::uint64_t>(i);
    const auto start = std::chrono::steady_clock::now();
    std::fwrite(prompt.data(), 1, prompt.size(), stdout);
    const train::TextSample sample =
        train::sample_text(loaded.model, loaded.tokenizer, prompt, how, [](std::string_view text) {
          std::fwrite(text.data(), 1, text.size(), stdout);
          std::fflush(stdout);
        });
    std::fputs("\n", stdout);
    std::fflush(stdout);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!command.quiet) {
      std::fprintf(stderr, "%s\n",
                   styled(Style::kDim,
                          "[" + std::to_string(sample.prompt_tokens) + " prompt + " +
                              std::to_string(sample.new_tokens) + " new tokens, " +
                              train::short_count(static_cast<double>(sample.new_tokens) / seconds) +
                              " tok/s, seed " + std::to_string(seed) +
                              ", finish=" + model::name_of(sample.reason) + "]",
                          2)
                       .c_str());
    }
    train::poll_stop();
  }
  return kDone;
}

}  // namespace

void add_generate(CLI::App& app) {
  CLI::App* verb = add_verb(
      app, "generate", "Continue a text with a trained model",
      "  kda generate --ckpt runs/first --prompt \"The file \"\n"
      "  kda generate --ckpt runs/first/best --prompt 如果 --greedy --max-new-tokens 64\n"
      "  echo -n \"Open the \" | kda generate --ckpt runs/first --top-p 0.9 --seed 7\n"
      "\n"
      "Text goes to standard output as it comes, in whole characters; the line with token counts,\n"
      "speed, seed and finish reason (stop, length, cancelled) goes to standard error.");
  auto command = std::make_shared<GenerateCommand>();
  verb->add_option("--ckpt", command->load.checkpoint,
                   "Run folder, checkpoint folder, RUN/best or RUN/last")
      ->type_name("PATH")
      ->required();
  verb->add_option_function<std::string>(
          "--prompt",
          [command](const std::string& text) {
            command->prompt = text;
            command->has_prompt = true;
          },
          "Text to continue; may be empty")
      ->type_name("TEXT");
  verb->add_option("--prompt-file", command->prompt_file,
                   "File with the text to continue; - or nothing at all: standard input")
      ->type_name("FILE");
  add_whole(verb, "--max-new-tokens", command->max_new_tokens, {}, "Tokens to add at most");
  add_real(verb, "--temperature,--temp", command->temperature, "0 = greedy; higher is more varied");
  verb->add_flag("--greedy", command->greedy, "Always the most probable token (temperature 0)");
  add_whole(verb, "--top-k", command->top_k, {}, "Draw among the K most probable tokens; 0 = all");
  add_real(verb, "--top-p", command->top_p,
           "Draw among the most probable tokens whose sum reaches P, in (0, 1]")
      ->type_name("P");
  add_whole(verb, "--seed", command->seed, {.low = -1},
            "Same seed, same text; -1 = random, printed");
  add_whole(verb, "--samples", command->samples, {.low = 1}, "Independent continuations");
  verb->add_option("--tokenizer", command->load.tokenizer,
                   "Tokenizer file; default: the copy in the checkpoint")
      ->type_name("FILE");
  verb->add_option("--dtype", command->load.dtype, "fp32 or bf16")
      ->type_name("TEXT")
      ->capture_default_str();
  verb->add_option("--backend", command->load.backend, "Backend of the operator: auto, cpu, ref")
      ->type_name("TEXT")
      ->capture_default_str();
  add_whole(verb, "--threads", command->threads, kThreadRange, "CPU threads; 0 = all");
  verb->add_flag("--quiet", command->quiet, "No statistics line");
  on_run(verb, [command] { return run_generate(*command); });
}

}  // namespace kda::cli
