#include "cli/training_verb.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <type_traits>

#include "cli/console.h"
#include "io/json.h"
#include "kda/error.h"
#include "train/config_file.h"
#include "train/named_errors.h"
#include "train/option_effects.h"
#include "train/options.h"
#include "train/signals.h"
#include "train/trainer.h"
#include "train/units.h"

namespace kda::cli {
namespace {

struct TrainCommand {
  train::TrainOptions options;
  std::set<std::string> given;
  std::set<std::string> from_file;
  std::string resume;
  std::string config;
  bool auto_resume = false;
  bool overwrite = false;
  bool dump_config = false;
};

const char* type_name(const std::string&) { return "TEXT"; }
const char* type_name(std::int64_t) { return "N"; }
const char* type_name(double) { return "X"; }
const char* type_name(const train::Count&) { return "COUNT"; }
const char* type_name(train::Task) { return "TASK"; }
const char* type_name(const train::Period&) { return "PERIOD"; }
const char* type_name(const train::NonFinitePolicy&) { return "POLICY"; }

/// One option per field of the table; remembers which fields the user named.
void add_fields(CLI::App* verb, const std::shared_ptr<TrainCommand>& command) {
  train::for_each_field(command->options, [&](const train::FieldInfo& info, auto& field) {
    using Field = std::remove_reference_t<decltype(field)>;
    if (!info.belongs_to(command->options.task)) return;
    std::string flag = train::flag_of(info.key);
    const std::string key = info.key;
    // Fine-tuning always starts from a checkpoint, which every other verb calls --ckpt.
    if (command->options.task == train::Task::kSft && key == "init_from") flag += ",--ckpt";
    CLI::Option* option = nullptr;
    if constexpr (std::is_same_v<Field, bool>) {
      option = verb->add_flag_callback(flag, [command, key, &field] {
        field = true;
        command->given.insert(key);
      });
    } else if constexpr (std::is_same_v<Field, std::vector<std::string>>) {
      option = verb->add_option_function<std::vector<std::string>>(
          flag, [command, key, &field](const std::vector<std::string>& values) {
            field = values;
            command->given.insert(key);
          });
      option->allow_extra_args(false)->take_all()->type_name("TEXT");
    } else {
      option = verb->add_option_function<std::string>(
          flag, [command, key, flag, &field](const std::string& text) {
            train::parse_text(text, flag, field);
            command->given.insert(key);
          });
      option->type_name(type_name(field));
      const std::string preset = train::to_text(field);
      if (!preset.empty() && preset != "-1" && preset != "0") option->default_str(preset);
    }
    option->description(info.help)->group(info.group);
  });
}

/// Options of a file, under those that the user named.
void apply_config_file(TrainCommand& command) {
  train::OptionsFile file = train::named(
      "--config", [&] { return train::read_options_file(command.config, command.options.task); });
  io::Json merged = io::parse_json(train::options_to_json(file.options), "options");
  const io::Json named = io::parse_json(train::options_to_json(command.options), "options");
  // One budget on the command line replaces whichever the file has.
  const std::set<std::string> budgets{"steps", "max_tokens", "epochs"};
  const bool has_budget = std::any_of(budgets.begin(), budgets.end(), [&](const std::string& key) {
    return command.given.contains(key);
  });
  for (const auto& item : named.items()) {
    if (command.given.contains(item.key()) || (has_budget && budgets.contains(item.key()))) {
      merged[item.key()] = item.value();
    }
  }
  command.options = train::options_from_json(merged.dump(), command.config);
  command.from_file = std::move(file.keys);
}

train::TrainRequest request_of(TrainCommand& command) {
  const bool continues = !command.resume.empty() || command.auto_resume;
  if (continues && command.overwrite) {
    throw Error(ErrorCode::kInvalidArgument,
                "--overwrite excludes --resume and --auto-resume: give one");
  }
  if (!command.resume.empty() && !command.config.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--resume and --config exclude each other: a run continues with its own options");
  }
  if (!command.config.empty()) apply_config_file(command);
  train::TrainRequest request;
  request.overwrite = command.overwrite;
  if (!command.resume.empty()) {
    if (command.given.contains("out") && command.options.out != command.resume) {
      throw Error(ErrorCode::kInvalidArgument, "--resume " + command.resume + " and --out " +
                                                   command.options.out +
                                                   " name different folders: a run continues in "
                                                   "its own");
    }
    command.options.out = command.resume;
    request.resume = train::ResumeMode::kYes;
  } else if (command.auto_resume) {
    request.resume = train::ResumeMode::kIfPresent;
  }
  request.options = command.options;
  request.given_keys = command.given;
  request.file_keys = command.from_file;
  return request;
}

void print_best(const train::TrainOutcome& outcome) {
  if (!outcome.has_best) return;
  std::printf(", best");
  if (outcome.best_success) std::printf(" %.1f %% translated,", 100 * *outcome.best_success);
  std::printf(" held-out loss %.4f at step %lld", outcome.best_loss,
              static_cast<long long>(outcome.best_step));
}

void print_summary(const train::TrainOutcome& outcome, const train::TrainOptions& options) {
  const char* verb = train::name_of(options.task);
  const std::string& run = options.out;
  std::printf("%s step %lld/%lld, loss %.4f (smoothed)",
              outcome.signal_number != 0 || outcome.stopped_early ? "stopped at" : "done:",
              static_cast<long long>(outcome.point.step),
              static_cast<long long>(outcome.total_steps), outcome.loss_ema);
  print_best(outcome);
  std::printf("\n%s in %s, %s tokens, %.4g tok/param, %s tok/s all in all, peak memory %s",
              run.c_str(), train::short_duration(outcome.seconds).c_str(),
              train::short_count(static_cast<double>(outcome.tokens)).c_str(),
              outcome.tokens_per_parameter, train::short_count(outcome.tokens_per_second).c_str(),
              train::short_bytes(static_cast<double>(outcome.peak_resident_bytes)).c_str());
  if (outcome.peak_device_bytes > 0) {
    std::printf(", GPU %s",
                train::short_bytes(static_cast<double>(outcome.peak_device_bytes)).c_str());
  }
  if (outcome.skipped > 0) {
    std::printf(", %lld steps skipped", static_cast<long long>(outcome.skipped));
  }
  std::printf("\n");
  if (outcome.signal_number != 0) {
    std::printf("%s: saved %s; continue with kda %s --resume %s\n",
                train::signal_name(outcome.signal_number), outcome.last_checkpoint.c_str(), verb,
                run.c_str());
  } else if (outcome.stopped_early) {
    std::printf("continue with kda %s --resume %s\n", verb, run.c_str());
  } else {
    std::printf("plot %s/loss.svg, metrics %s/metrics.jsonl; text: kda generate --ckpt %s\n",
                run.c_str(), run.c_str(), run.c_str());
  }
}

/// A checkpoint or a packed folder brings its tokenizer when the run begins: until then none need
/// be named.
train::TrainOptions with_tokenizer(train::TrainOptions options) {
  const std::filesystem::path packed = std::filesystem::path(options.data) / "tokenizer.model";
  if (options.tokenizer.empty() &&
      (!options.init_from.empty() || std::filesystem::exists(packed))) {
    options.tokenizer = packed.string();
  }
  return options;
}

int run_training(TrainCommand& command) {
  train::TrainRequest request = request_of(command);
  if (command.dump_config) {
    std::set<std::string> settled = request.given_keys;
    settled.insert(request.file_keys.begin(), request.file_keys.end());
    train::apply_preset_defaults(request.options, settled);
    train::check_options(with_tokenizer(request.options));
    for (const std::string& text :
         train::refuse_without_effect(train::without_effect(request.options), request.options,
                                      request.given_keys, request.file_keys)) {
      print_warning(train::name_of(request.options.task), text);
    }
    std::printf("%s", train::options_to_toml(request.options).c_str());
    return kDone;
  }
  const train::SignalScope signals;
  ConsoleReporter reporter(train::name_of(command.options.task));
  const train::TrainOutcome outcome = train::train(request, reporter);
  print_summary(outcome, request.options);
  return outcome.signal_number == 0 ? kDone : kSignalBase + outcome.signal_number;
}

}  // namespace

void add_training_verb(CLI::App* verb, const train::TrainOptions& defaults) {
  auto command = std::make_shared<TrainCommand>();
  command->options = defaults;
  add_fields(verb, command);
  verb->add_option(
          "--resume", command->resume,
          "Continue the run in this folder from its last sound checkpoint; its own options "
          "hold, flags that do not change the trajectory may be given anew")
      ->type_name("RUN")
      ->group("Run");
  verb->add_flag("--auto-resume", command->auto_resume,
                 "Continue --out when it holds a checkpoint, else start")
      ->group("Run");
  verb->add_flag("--overwrite", command->overwrite, "Replace the run that --out holds")
      ->group("Run");
  verb->add_option("--config", command->config,
                   "Take options from a TOML file or from the config.json of a run; flags "
                   "override them")
      ->type_name("FILE")
      ->group("Run");
  verb->add_flag("--dump-config", command->dump_config,
                 "Print the options as TOML and leave; --config reads it back")
      ->group("Run");
  on_run(verb, [command] { return run_training(*command); });
}

}  // namespace kda::cli
