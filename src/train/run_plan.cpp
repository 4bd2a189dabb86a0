#include "train/run_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "binding/functional.h"
#include "io/escape.h"
#include "io/sha256.h"
#include "kda/error.h"
#include "train/named_errors.h"
#include "train/option_effects.h"
#include "train/run_memory.h"
#include "train/run_model.h"

namespace kda::train {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kDefaultWarmup = 64;
constexpr double kMaxRunTokens = 0x1p53;  // whole numbers up to here are exact as doubles too

[[noreturn]] void refuse_resume(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, text);
}

std::string short_hash(const std::string& hex) { return hex.substr(0, 16); }

void tell_broken(Reporter& reporter, const CheckpointFolder& folder) {
  reporter.warn("checkpoint " + folder.path.string() +
                " is broken and left out: " + folder.faults.front());
}

/// What is there must be a folder, and what is not must have a name that a folder can have.
void check_folder(const fs::path& run, const std::string& flag) {
  std::error_code status;
  const fs::file_type type = fs::status(run, status).type();
  if (type == fs::file_type::none) {
    throw Error(ErrorCode::kIo, flag + io::escaped(run.string()) + ": " + status.message());
  }
  if (type != fs::file_type::not_found && type != fs::file_type::directory) {
    throw Error(ErrorCode::kInvalidArgument,
                flag + "expected a folder, " + io::escaped(run.string()) + " is a file");
  }
}

/// Finds what to continue, and checks that the folder may be used.
std::optional<CheckpointFolder> find_resume(const fs::path& run, const TrainRequest& request,
                                            Reporter& reporter) {
  const ResumeMode mode = request.resume;
  if (mode == ResumeMode::kNo && request.overwrite) return std::nullopt;
  std::optional<CheckpointFolder> last =
      last_checkpoint(run, [&](const CheckpointFolder& f) { tell_broken(reporter, f); });
  const bool any = !list_checkpoints(run, false).empty();
  if (mode == ResumeMode::kNo && any) {
    refuse_resume("--out: " + run.string() + " already holds a run" +
                  (last ? " (" + last->path.filename().string() + ")" : std::string()) +
                  "; --resume " + run.string() +
                  " continues it, --overwrite replaces it, or choose another folder");
  }
  if (mode != ResumeMode::kNo && any && !last) {
    throw Error(ErrorCode::kIo, "--resume: every checkpoint in " + run.string() + " is broken");
  }
  if (mode == ResumeMode::kYes && !last) {
    refuse_resume("--resume: no checkpoint in " + run.string() +
                  " (--auto-resume starts a new run when there is none)");
  }
  return last;
}

/// What a launcher and a saved run say about processes must be what this program does.
void check_world(const std::optional<TrainerFile>& saved) {
  const std::int64_t now = world_size_of_environment();
  if (saved && saved->world_size != now) {
    refuse_resume("--resume: the run was trained by " + std::to_string(saved->world_size) +
                  (saved->world_size == 1 ? " process" : " processes") + ", WORLD_SIZE is " +
                  std::to_string(now) +
                  ": the order of the data depends on it; continue with the same number");
  }
  if (now != 1) {
    throw Error(ErrorCode::kUnsupported, "WORLD_SIZE: this program trains in one process, got " +
                                             std::to_string(now) +
                                             "; start one (unset WORLD_SIZE)");
  }
}

void check_task(const TrainerFile& saved, const TrainOptions& asked) {
  if (saved.options.task == asked.task) return;
  refuse_resume(std::string("--resume: the run was made by `kda ") + name_of(saved.options.task) +
                "`, this is `kda " + name_of(asked.task) +
                "`: continue it with its own verb, or start from its weights with --init-from");
}

text::Tokenizer load_tokenizer(const RunPlan& plan, bool given) {
  const auto load_given = [&] {
    return named("--tokenizer", [&] { return text::Tokenizer::load(plan.options.tokenizer); });
  };
  if (!plan.resumed) return load_given();
  text::Tokenizer own = text::Tokenizer::load(plan.resumed_from->path / "tokenizer.model");
  if (!given) return own;
  text::Tokenizer other = load_given();
  if (other.info().sha256 != own.info().sha256) {
    refuse_resume("--tokenizer: the run was started with tokenizer " +
                  short_hash(io::to_hex(own.info().sha256)) + " (vocabulary " +
                  std::to_string(own.vocab_size()) + "), got " + plan.options.tokenizer + " = " +
                  short_hash(io::to_hex(other.info().sha256)) + " (vocabulary " +
                  std::to_string(other.vocab_size()) + ")");
  }
  return other;
}

void check_init_from(const RunPlan& plan) {
  if (plan.options.init_from.empty() || plan.resumed) return;
  const CheckpointFolder from = starting_point(plan.options);
  const text::Tokenizer theirs = text::Tokenizer::load(from.path / "tokenizer.model");
  if (theirs.info().sha256 != plan.tokenizer->info().sha256) {
    refuse_resume("--init-from: its tokenizer is " + short_hash(io::to_hex(theirs.info().sha256)) +
                  " (vocabulary " + std::to_string(theirs.vocab_size()) + "), the run's is " +
                  short_hash(io::to_hex(plan.tokenizer->info().sha256)) + " (vocabulary " +
                  std::to_string(plan.tokenizer->vocab_size()) + ")");
  }
}

Schedule schedule_of(const TrainOptions& o, std::int64_t total_steps) {
  Schedule schedule;
  schedule.base_lr = o.lr;
  schedule.warmup_steps = o.warmup.value;
  schedule.total_steps = total_steps;
  schedule.floor_ratio = o.lr_floor;
  schedule.kind = schedule_from(o.schedule);
  schedule.decay_steps = schedule.kind == ScheduleKind::kWsd ? o.decay.value : 0;
  return schedule;
}

/// Steps that the budget of some options comes to, in double, which does not overflow.
double steps_of_budget(const TrainOptions& o, const TrainingData& data, double per_step) {
  if (o.max_tokens.value > 0) {
    return std::ceil(static_cast<double>(o.max_tokens.value) / per_step);
  }
  if (o.epochs.value > 0) {
    return std::ceil(data.micro_batches(o, o.epochs.value) / static_cast<double>(o.grad_accum));
  }
  return static_cast<double>(o.steps.value);
}

void check_progress(const RunPlan& plan) {
  const TrainerState& state = plan.resumed->state;
  const std::int64_t stop = plan.options.stop_after.value;
  if (state.step >= plan.total_steps) {
    refuse_resume("--resume: the run has done " + std::to_string(state.step) + " of " +
                  std::to_string(plan.total_steps) +
                  " steps: nothing is left to do (give a larger --steps or --max-tokens to go on)");
  }
  if (stop > 0 && state.step >= stop) {
    refuse_resume("--stop-after: the run has done " + std::to_string(state.step) +
                  " steps, expected a later one, got " + std::to_string(stop));
  }
}

void settle_budget(RunPlan& plan) {
  TrainOptions& o = plan.options;
  const double nominal = static_cast<double>(o.batch) * static_cast<double>(o.seq_len) *
                         static_cast<double>(o.grad_accum);
  double per_step = nominal;
  if (nominal <= kMaxRunTokens) {
    per_step = plan.data.tokens_per_micro_batch(o) * static_cast<double>(o.grad_accum);
  }
  const double steps = steps_of_budget(o, plan.data, per_step);
  if (!(nominal * steps <= kMaxRunTokens)) {
    char text[224];
    std::snprintf(text, sizeof text,
                  "--steps, --max-tokens, --epochs: expected a budget of at most %.3g tokens, got "
                  "%.3g steps of batch x "
                  "seq-len x grad-accum = %.3g tokens",
                  kMaxRunTokens, steps, nominal);
    refuse_resume(text);
  }
  plan.tokens_per_step = std::max<std::int64_t>(1, std::llround(per_step));
  plan.total_steps = static_cast<std::int64_t>(steps);
  if (o.warmup.value < 0) {
    o.warmup.value = std::min(kDefaultWarmup, std::max<std::int64_t>(1, plan.total_steps / 10));
  }
  if (o.decay.value < 0 && o.schedule == "wsd") {
    o.decay.value = std::min(plan.total_steps - o.warmup.value,
                             std::max<std::int64_t>(1, plan.total_steps / 10));
  }
  plan.schedule = schedule_of(o, plan.total_steps);
  plan.schedule.check();
  if (!plan.resumed) return;
  check_progress(plan);
  const TrainOptions& was = plan.resumed->options;
  Schedule before =
      schedule_of(was, static_cast<std::int64_t>(steps_of_budget(was, plan.data, per_step)));
  before.anchor = plan.resumed->state.lr_anchor;
  plan.schedule = continued_schedule(before, plan.schedule, plan.resumed->state.step);
}

/// Refuses what was asked for and would do nothing; warns of what a configuration file holds.
void check_effects(const WithoutEffect& idle, const TrainOptions& options,
                   const TrainRequest& request, Reporter& reporter) {
  for (const std::string& text :
       refuse_without_effect(idle, options, request.given_keys, request.file_keys)) {
    reporter.warn(text);
  }
}

RunFacts facts_of(const RunPlan& plan) {
  RunFacts facts;
  facts.packed_data = plan.data.is_packed();
  facts.has_heldout_file = plan.data.brings_heldout();
  facts.has_heldout = plan.data.has_heldout();
  facts.has_translations = !plan.translations.empty();
  facts.num_mla_layers = plan.model.num_mla_layers();
  facts.total_steps = plan.total_steps;
  return facts;
}

/// A folder that was made for a run, taken back when the run turns out to be impossible.
class NewFolder {
 public:
  explicit NewFolder(fs::path path) : path_(std::move(path)), existed_(fs::exists(path_)) {}
  ~NewFolder() {
    if (existed_ || keep_) return;
    std::error_code ignored;
    fs::remove(path_ / ".lock", ignored);
    fs::remove(path_, ignored);  // only when nothing else is inside
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  void keep() { keep_ = true; }

 private:
  fs::path path_;
  bool existed_;
  bool keep_ = false;
};

}  // namespace

Position RunPlan::position(std::int64_t step, std::int64_t tokens) const {
  return {step, tokens, data.num_tokens()};
}

std::int64_t world_size_of_environment() {
  const char* text = std::getenv("WORLD_SIZE");
  if (text == nullptr || *text == 0) return 1;
  std::int64_t value = 0;
  parse_text(text, "WORLD_SIZE", value);
  if (value < 1) {
    refuse_resume("WORLD_SIZE: expected a number of processes, got " + std::to_string(value));
  }
  return value;
}

WithoutEffect idle_options(const RunPlan& plan) {
  WithoutEffect idle = without_effect(plan.options);
  idle.merge(without_effect(plan.options, facts_of(plan)));
  return idle;
}

RunPlan make_plan(const TrainRequest& request, Reporter& reporter) {
  TrainOptions options = request.options;
  if (options.out.empty()) refuse_resume("--out: expected a folder for the run, got nothing");
  const fs::path run = options.out;
  RunPlan plan;
  check_folder(run, request.resume == ResumeMode::kYes ? "--resume: " : "--out: ");
  // An existing folder is locked before it is looked at: its checkpoints must not move meanwhile.
  if (fs::is_directory(run)) plan.lock = std::make_unique<RunLock>(run);
  std::optional<CheckpointFolder> from = find_resume(run, request, reporter);
  std::optional<TrainerFile> saved;
  if (from) {
    saved = read_trainer_file(from->path);
    check_task(*saved, request.options);
    options = merge_for_resume(saved->options, request.options, request.given_keys);
    options.out = request.options.out;  // the folder may have been moved or renamed
  }
  bool recompute_is_open = false;
  if (!from) {
    std::set<std::string> settled = request.given_keys;
    settled.insert(request.file_keys.begin(), request.file_keys.end());
    apply_preset_defaults(options, settled);
    recompute_is_open = options.recompute && !settled.contains("recompute");
  }
  check_world(saved);
  // A packed folder brings its tokenizer.
  if (const fs::path packed = fs::path(options.data) / "tokenizer.model";
      options.tokenizer.empty() && !options.data.empty() && fs::exists(packed)) {
    options.tokenizer = packed.string();
  }
  if (options.tokenizer.empty() && !options.init_from.empty() && !from) {
    options.tokenizer = (starting_point(options).path / "tokenizer.model").string();
  }
  check_options(options);
  const bool has_preset = from || takes_preset(options, request.given_keys);
  WithoutEffect idle = without_effect(options);
  if (!has_preset && !request.given_keys.contains("preset")) {
    idle.emplace("preset", options.model_config.empty()
                               ? "with --init-from, whose model it is (--preset asks for another)"
                               : "with --model-config");
  }
  check_effects(idle, options, request, reporter);
  NewFolder folder(run);
  std::error_code status;
  fs::create_directories(run, status);
  if (status) {
    throw Error(ErrorCode::kIo, "--out: cannot create " + run.string() + ": " + status.message());
  }
  if (!plan.lock) plan.lock = std::make_unique<RunLock>(run);
  remove_leftovers(run);

  plan.device = choose_device(options.device);  // before anything else of torch
  check_backend(options.backend, plan.device);
  binding::set_num_threads(static_cast<int>(options.threads));
  plan.options = std::move(options);
  plan.run = run;
  plan.resumed_from = std::move(from);
  plan.resumed = std::move(saved);
  plan.tokenizer = load_tokenizer(plan, request.given_keys.contains("tokenizer"));
  check_init_from(plan);
  plan.model = plan.resumed_from
                   ? model::load_config((plan.resumed_from->path / "config.json").string())
                   : model_of(plan.options, request.given_keys, plan.tokenizer->info());
  if (!has_preset) plan.options.preset.clear();  // a default that nobody asked: no part of the run

  plan.translations = find_translation_sets(plan.options);
  plan.data = TrainingData::prepare(plan.options, *plan.tokenizer, reporter);
  if (plan.resumed && plan.data.fingerprint() != plan.resumed->dataset) {
    refuse_resume("--data: the run was started with data " + short_hash(plan.resumed->dataset) +
                  ", " + plan.options.data + " is " + short_hash(plan.data.fingerprint()) +
                  "; a resumed run needs the same text (use --init-from to go on with other text)");
  }
  settle_budget(plan);
  check_effects(without_effect(plan.options, facts_of(plan)), plan.options, request, reporter);
  if (recompute_is_open) settle_recompute(plan);
  check_memory(plan);
  folder.keep();
  return plan;
}

void clear_run(const fs::path& run) {
  try {
    for (const CheckpointFolder& folder : list_checkpoints(run, false))
      fs::remove_all(folder.path);
    for (const char* name : {"metrics.jsonl", "loss.svg", "config.json"})
      fs::remove(run / name);
    clear_best(run);
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorCode::kIo,
                "--overwrite: cannot clear " + run.string() + ": " + error.code().message());
  }
}

}  // namespace kda::train
