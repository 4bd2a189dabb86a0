#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "cli/app.h"
#include "cli/console.h"
#include "cli/generate_modes.h"
#include "cli/no_effect.h"
#include "cli/number_option.h"
#include "cli/standard_input.h"
#include "io/atomic_file.h"
#include "io/escape.h"
#include "io/utf8.h"
#include "kda/error.h"
#include "text/prompts.h"
#include "train/named_errors.h"
#include "train/options.h"
#include "train/signals.h"

namespace kda::cli {
namespace {

struct GenerateCommand {
  GenerateOptions options;
  std::string prompt;
  std::string prompt_file;
  bool has_prompt = false;
  bool greedy = false;
  bool ignore_eos = false;
  std::string translate;
  std::int64_t seed = 1;
};

[[noreturn]] void bad_usage(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, text);
}

/// The prompt, from the one place that was named. A final newline of a file or pipe is dropped: it
/// comes from the editor, not from the author.
std::string prompt_of(const GenerateCommand& command) {
  if (command.has_prompt && !command.prompt_file.empty()) {
    bad_usage("--prompt and --prompt-file exclude each other: give one");
  }
  if (command.has_prompt) return command.prompt;
  std::string text;
  if (!command.prompt_file.empty() && command.prompt_file != "-") {
    text = train::named("--prompt-file", [&] { return io::read_file(command.prompt_file); });
  } else {
    if (command.prompt_file.empty() && ::isatty(STDIN_FILENO) == 1) return {};
    text = read_standard_input();
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

void check_modes(const GenerateCommand& c) {
  const GenerateOptions& o = c.options;
  const bool prompt = c.has_prompt || !c.prompt_file.empty();
  if (!o.input.empty() && (prompt || o.interactive || !o.session.empty() || o.samples > 1)) {
    bad_usage("--input excludes --prompt, --prompt-file, --interactive, --session and --samples");
  }
  if (!o.output.empty() && o.input.empty()) bad_usage("--output needs --input");
  if (o.interactive && (prompt || o.samples > 1)) {
    bad_usage("--interactive excludes --prompt, --prompt-file and --samples: prompts are typed");
  }
  if (!o.session.empty() && o.samples > 1) {
    bad_usage("--session holds one text: --samples must be 1, got " + std::to_string(o.samples));
  }
  if (o.target && !o.session.empty()) {
    bad_usage("--translate excludes --session: each translation is a text of its own");
  }
}

void check_effects(const CLI::App* verb, const GenerateCommand& c) {
  const GenerateOptions& o = c.options;
  const model::SamplingOptions& s = o.how.sampling;
  if (c.greedy && verb->count("--temperature") > 0) {
    bad_usage("--greedy is --temperature 0: give one of the two");
  }
  if (s.temperature == 0) {
    refuse_given(verb, {"--top-k", "--top-p", "--min-p"},
                 "without sampling: the most probable token is taken");
    if (o.samples > 1) {
      bad_usage("--samples: without sampling all texts are the same, expected 1, got " +
                std::to_string(o.samples));
    }
  }
  if (s.repetition_penalty == 1) {
    refuse_given(verb, {"--repetition-window"}, "without --repetition-penalty");
  }
  if (o.input.empty()) refuse_given(verb, {"--batch"}, "without --input");
}

int run_generate(const CLI::App* verb, GenerateCommand command) {
  GenerateOptions& options = command.options;
  if (!command.translate.empty()) {
    options.target = text::language_from(command.translate);
    if (!options.target) {
      bad_usage("--translate: expected en or zh, got " + io::escaped(command.translate));
    }
  }
  eval::ContinueOptions& how = options.how;
  if (command.greedy) how.sampling.temperature = 0.0;
  how.sampling.seed =
      command.seed < 0 ? std::random_device{}() : static_cast<std::uint64_t>(command.seed);
  how.sampling.validate();
  how.stop_at_eos = !command.ignore_eos;
  check_modes(command);
  check_effects(verb, command);

  const train::SignalScope signals;
  if (!options.input.empty()) return generate_jsonl(options);
  if (options.interactive) return generate_interactively(options);
  const std::string prompt = prompt_of(command);
  // Before anything is printed: the prompt is the first part of the output.
  if (const auto bad = io::find_invalid_utf8(prompt); bad != prompt.size()) {
    bad_usage(std::string(command.has_prompt ? "--prompt" : "--prompt-file") +
              ": expected UTF-8, byte " + std::to_string(bad + 1) + " of " +
              std::to_string(prompt.size()) + " is not");
  }
  return generate_once(options, prompt);
}

}  // namespace

void add_generate(CLI::App& app) {
  CLI::App* verb = add_verb(
      app, "generate", "Continue texts with a trained model",
      "  kda generate --ckpt runs/first --prompt \"The file \"\n"
      "  kda generate --ckpt runs/first/best --prompt 如果 --greedy --max-new-tokens 64\n"
      "  echo -n \"Open the \" | kda generate --ckpt runs/first --top-p 0.9 --seed 7\n"
      "  kda generate --ckpt runs/sft --translate zh --greedy --prompt \"Good morning.\"\n"
      "  kda generate --ckpt runs/first --session my.session --prompt \"Once upon a time\"\n"
      "  kda generate --ckpt runs/first --session my.session          # goes on where it was\n"
      "  kda generate --ckpt runs/first --interactive --device cuda\n"
      "  kda generate --ckpt runs/first --input prompts.jsonl --output texts.jsonl --batch 64\n"
      "\n"
      "Text goes to standard output as it comes, in whole characters; the line with token counts,\n"
      "speed, seed and finish reason (stop, length, cancelled) goes to standard error.");
  auto command = std::make_shared<GenerateCommand>();
  GenerateOptions& o = command->options;
  o.how.sampling.temperature = 0.8;
  verb->add_option("--ckpt", o.load.checkpoint,
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
  verb->add_option("--translate", command->translate,
                   "Translate the prompt into en or zh, with the prompt of fine-tuning; one line")
      ->type_name("LANG");
  verb->add_flag("-i,--interactive", o.interactive,
                 "Type line by line; each goes on with the same text (/help lists commands)");
  verb->add_option("--session", o.session,
                   "Folder of a text in progress: taken up when it is there, saved at the end")
      ->type_name("DIR");
  verb->add_option("--input", o.input,
                   "JSONL file of prompts ({\"prompt\": ...} per line; - is standard input)")
      ->type_name("FILE");
  verb->add_option("--output", o.output,
                   "With --input: file for the same objects with \"text\" and \"finish\"; default: "
                   "standard output")
      ->type_name("FILE");
  add_whole(verb, "--batch", o.batch, {1, 1 << 16}, "With --input: prompts continued at once");
  add_whole(verb, "--max-new-tokens", o.how.max_new_tokens, {}, "Tokens to add at most");
  model::SamplingOptions& s = o.how.sampling;
  add_real(verb, "--temperature,--temp", s.temperature, "0 = greedy; higher is more varied");
  verb->add_flag("--greedy", command->greedy, "Always the most probable token (temperature 0)");
  add_whole(verb, "--top-k", s.top_k, {}, "Draw among the K most probable tokens; 0 = all");
  add_real(verb, "--top-p", s.top_p,
           "Draw among the most probable tokens whose sum reaches P, in (0, 1]")
      ->type_name("P");
  add_real(verb, "--min-p", s.min_p,
           "Leave out tokens less probable than P times the best; 0 = none")
      ->type_name("P");
  add_real(verb, "--repetition-penalty", s.repetition_penalty,
           "Weaken tokens that occurred: logits are divided by X (negative: multiplied); 1 = off");
  add_whole(verb, "--repetition-window", s.repetition_window, {},
            "Last tokens that the penalty looks at; 0 = all");
  add_whole(verb, "--seed", command->seed, {.low = -1},
            "Same seed, same text; -1 = random, printed");
  add_whole(verb, "--samples", o.samples, {.low = 1}, "Independent continuations");
  verb->add_flag("--ignore-eos", command->ignore_eos, "Go on behind the end of a document");
  add_whole(verb, "--prefill-chunk", o.how.prefill_piece, {1, 1 << 24},
            "Tokens of the prompt fed at once; bounds the memory, changes no result");
  add_model_options(verb, o.load);
  verb->add_flag("--quiet", o.quiet, "No statistics line");
  on_run(verb, [verb, command] { return run_generate(verb, *command); });
}

}  // namespace kda::cli
