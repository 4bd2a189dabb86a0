#include "train/run_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <system_error>
#include <utility>

#include "binding/functional.h"
#include "io/config_reader.h"
#include "io/escape.h"
#include "io/sha256.h"
#include "kda/error.h"
#include "kda/version.h"
#include "model/cost.h"
#include "train/process_memory.h"
#include "train/units.h"

namespace kda::train {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kDefaultWarmup = 64;
// An estimate this many times the available memory is refused: the system would kill the run.
constexpr std::int64_t kHopeless = 2;
constexpr double kMaxRunTokens = 0x1p53;  // whole numbers up to here are exact as doubles too

[[noreturn]] void refuse_resume(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, text);
}

std::string short_hash(const std::string& hex) { return hex.substr(0, 16); }

void tell_broken(Reporter& reporter, const CheckpointFolder& folder) {
  reporter.warn("checkpoint " + folder.path.string() +
                " is broken and left out: " + folder.faults.front());
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

text::Tokenizer load_tokenizer(const RunPlan& plan, bool given) {
  if (!plan.resumed) return text::Tokenizer::load(plan.options.tokenizer);
  text::Tokenizer own = text::Tokenizer::load(plan.resumed_from->path / "tokenizer.model");
  if (!given) return own;
  text::Tokenizer other = text::Tokenizer::load(plan.options.tokenizer);
  if (other.info().sha256 != own.info().sha256) {
    refuse_resume("--tokenizer: the run was started with tokenizer " +
                  short_hash(io::to_hex(own.info().sha256)) + " (vocabulary " +
                  std::to_string(own.vocab_size()) + "), got " + plan.options.tokenizer + " = " +
                  short_hash(io::to_hex(other.info().sha256)) + " (vocabulary " +
                  std::to_string(other.vocab_size()) + ")");
  }
  return other;
}

/// The field of a config that "a" or "a.b" names; throws with the nearest known name.
io::Json& field_of(io::Json& config, const std::string& path) {
  io::Json* at = &config;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    if (!at->is_object() || !at->contains(key)) {
      std::vector<std::string> known;
      for (const auto& item : config.items()) {
        known.push_back(item.key());
        if (!item.value().is_object()) continue;
        for (const auto& inner : item.value().items()) {
          known.push_back(item.key() + "." + inner.key());
        }
      }
      const std::string guess = io::nearest_word(path, known);
      refuse_resume("--set: the model config has no field '" + path + "'" +
                    (guess.empty() ? std::string() : "; did you mean " + guess + "?"));
    }
    at = &(*at)[key];
    begin = end + 1;
  }
  return *at;
}

/// Applies "key=value" to the JSON form of a config, where the value is JSON or a bare word.
model::KDAConfig with_changes(const model::KDAConfig& base,
                              const std::vector<std::string>& changes) {
  if (changes.empty()) return base;
  io::Json json = io::parse_json(base.to_json(), "model config");
  for (const std::string& change : changes) {
    const std::size_t equals = change.find('=');
    if (equals == std::string::npos || equals == 0) {
      refuse_resume("--set: expected key=value, got '" + change + "'");
    }
    io::Json& field = field_of(json, change.substr(0, equals));
    const std::string value = change.substr(equals + 1);
    try {
      field = io::parse_json(value, "--set");
    } catch (const Error&) {
      field = value;
    }
  }
  return model::KDAConfig::from_json(json.dump());
}

model::KDAConfig model_config(const RunPlan& plan, const std::set<std::string>& given) {
  const TrainOptions& o = plan.options;
  if (plan.resumed_from) {
    return model::load_config((plan.resumed_from->path / "config.json").string());
  }
  const text::TokenizerInfo& tokenizer = plan.tokenizer->info();
  model::KDAConfig config;
  if (!o.model_config.empty()) {
    if (given.contains("preset"))
      refuse_resume("--preset and --model-config exclude each other: give one");
    config = model::load_config(o.model_config);
  } else if (!o.init_from.empty() && !given.contains("preset")) {
    config = model::load_config((resolve_checkpoint(o.init_from).path / "config.json").string());
  } else {
    config = model::KDAConfig::preset(o.preset);
    config.vocab_size = tokenizer.vocab_size;
  }
  config = with_changes(config, o.set);
  config.bos_id = tokenizer.bos_id;
  config.eos_id = tokenizer.eos_id;
  config.pad_id = tokenizer.pad_id;
  if (config.vocab_size < tokenizer.vocab_size) {
    refuse_resume("vocab_size: the model has " + std::to_string(config.vocab_size) +
                  " entries, the tokenizer " + o.tokenizer + " needs " +
                  std::to_string(tokenizer.vocab_size));
  }
  config.validate();
  return config;
}

void check_init_from(const RunPlan& plan) {
  if (plan.options.init_from.empty() || plan.resumed) return;
  const CheckpointFolder from = resolve_checkpoint(plan.options.init_from);
  const text::Tokenizer theirs = text::Tokenizer::load(from.path / "tokenizer.model");
  if (theirs.info().sha256 != plan.tokenizer->info().sha256) {
    refuse_resume("--init-from: its tokenizer is " + short_hash(io::to_hex(theirs.info().sha256)) +
                  " (vocabulary " + std::to_string(theirs.vocab_size()) + "), the run's is " +
                  short_hash(io::to_hex(plan.tokenizer->info().sha256)) + " (vocabulary " +
                  std::to_string(plan.tokenizer->vocab_size()) + ")");
  }
}

void settle_budget(RunPlan& plan) {
  TrainOptions& o = plan.options;
  // In doubles, which do not overflow: what follows counts in 64-bit integers.
  const double per_step = static_cast<double>(o.batch) * static_cast<double>(o.seq_len) *
                          static_cast<double>(o.grad_accum);
  double steps = static_cast<double>(o.steps.value);
  if (o.max_tokens.value > 0) {
    steps = std::ceil(static_cast<double>(o.max_tokens.value) / per_step);
  }
  if (o.epochs.value > 0) {
    steps = std::ceil(static_cast<double>(o.epochs.value) *
                      static_cast<double>(plan.data.train->num_tokens()) / per_step);
  }
  if (!(per_step * steps <= kMaxRunTokens)) {
    char text[160];
    std::snprintf(
        text, sizeof text,
        "budget: expected at most %.3g tokens in the whole run, got %.3g steps of batch x "
        "seq-len x grad-accum = %.3g tokens",
        kMaxRunTokens, steps, per_step);
    refuse_resume(text);
  }
  plan.tokens_per_step = o.batch * o.seq_len * o.grad_accum;
  plan.total_steps = static_cast<std::int64_t>(steps);
  if (o.warmup.value < 0) {
    o.warmup.value = std::min(kDefaultWarmup, std::max<std::int64_t>(1, plan.total_steps / 10));
  }
  plan.schedule = {o.lr, o.warmup.value, plan.total_steps, o.lr_floor};
  plan.schedule.check();
  if (plan.resumed && plan.resumed->state.step >= plan.total_steps) {
    refuse_resume("--resume: the run has done " + std::to_string(plan.resumed->state.step) +
                  " of " + std::to_string(plan.total_steps) +
                  " steps: nothing is left to do (give a larger --steps or --max-tokens to go on)");
  }
  if (plan.resumed && o.stop_after.value > 0 && plan.resumed->state.step >= o.stop_after.value) {
    refuse_resume("--stop-after: the run has done " + std::to_string(plan.resumed->state.step) +
                  " steps, expected a later one, got " + std::to_string(o.stop_after.value));
  }
}

constexpr const char* kMemoryAdvice =
    "use a smaller --batch with a larger --grad-accum, or --recompute";

model::MemoryEstimate memory_of(const RunPlan& plan) {
  const TrainOptions& o = plan.options;
  model::TrainingShape shape;
  shape.tokens_per_micro_batch = o.batch * o.seq_len;
  shape.compute = o.dtype == "bf16" ? DType::kBF16 : DType::kF32;
  shape.recompute_blocks = o.recompute;
  return model::estimate_training_memory(plan.model, shape);
}

void check_memory(const RunPlan& plan) {
  const std::int64_t wanted = memory_of(plan).total_bytes();
  const std::int64_t available = available_bytes();
  if (available <= 0 || wanted <= kHopeless * available) return;
  throw Error(ErrorCode::kInvalidArgument,
              "--batch: expected a run that fits into memory, got one of about " +
                  short_bytes(static_cast<double>(wanted)) + " where " +
                  short_bytes(static_cast<double>(available)) + " are available; " + kMemoryAdvice);
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

std::string mib(std::int64_t bytes) { return short_bytes(static_cast<double>(bytes)); }

}  // namespace

Position RunPlan::position(std::int64_t step) const {
  return {step, step * tokens_per_step, static_cast<std::int64_t>(data.train->num_tokens())};
}

RunPlan make_plan(const TrainRequest& request, Reporter& reporter) {
  TrainOptions options = request.options;
  if (options.out.empty()) refuse_resume("--out: expected a folder for the run, got nothing");
  const fs::path run = options.out;
  RunPlan plan;
  // An existing folder is locked before it is looked at: its checkpoints must not move meanwhile.
  if (fs::is_directory(run)) plan.lock = std::make_unique<RunLock>(run);
  std::optional<CheckpointFolder> from = find_resume(run, request, reporter);
  std::optional<TrainerFile> saved;
  if (from) {
    saved = read_trainer_file(from->path);
    options = merge_for_resume(saved->options, request.options, request.given_keys);
    options.out = request.options.out;  // the folder may have been moved or renamed
  }
  // A packed folder brings its tokenizer.
  if (const fs::path packed = fs::path(options.data) / "tokenizer.model";
      options.tokenizer.empty() && !options.data.empty() && fs::exists(packed)) {
    options.tokenizer = packed.string();
  }
  check_options(options);
  NewFolder folder(run);
  std::error_code status;
  fs::create_directories(run, status);
  if (status) {
    throw Error(ErrorCode::kIo, "--out: cannot create " + run.string() + ": " + status.message());
  }
  if (!plan.lock) plan.lock = std::make_unique<RunLock>(run);
  remove_leftovers(run);

  binding::set_num_threads(static_cast<int>(options.threads));
  plan.options = std::move(options);
  plan.run = run;
  plan.resumed_from = std::move(from);
  plan.resumed = std::move(saved);
  plan.tokenizer = load_tokenizer(plan, request.given_keys.contains("tokenizer"));
  check_init_from(plan);
  plan.model = model_config(plan, request.given_keys);

  const fs::path data = plan.options.data;
  fs::path cache = plan.options.cache;
  if (cache.empty()) cache = (fs::is_directory(data) ? data : data.parent_path()) / "cache";
  plan.data =
      prepare_data(find_data(data), {cache, plan.options.heldout_share}, *plan.tokenizer, reporter);
  if (plan.resumed) {
    const std::string fingerprint = io::to_hex(plan.data.train->fingerprint());
    if (fingerprint != plan.resumed->dataset) {
      refuse_resume(
          "--data: the run was started with data " + short_hash(plan.resumed->dataset) + ", " +
          data.string() + " is " + short_hash(fingerprint) +
          "; a resumed run needs the same text (use --init-from to go on with other text)");
    }
  }
  settle_budget(plan);
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

void write_run_config(const RunPlan& plan) {
  const io::Json json = {
      {"format", "kda-run"},
      {"version", 1},
      {"kda", kda::version()},
      {"train", io::parse_json(options_to_json(plan.options), "options")},
      {"model", io::parse_json(plan.model.to_json(), "model config")},
      {"tokenizer",
       {{"sha256", io::to_hex(plan.tokenizer->info().sha256)},
        {"vocab_size", plan.tokenizer->vocab_size()}}},
      {"data",
       {{"fingerprint", io::to_hex(plan.data.train->fingerprint())},
        {"documents", plan.data.train->num_documents()},
        {"tokens", plan.data.train->num_tokens()},
        {"text_bytes", plan.data.train->text_bytes()},
        {"heldout_tokens", plan.data.heldout ? plan.data.heldout->num_tokens() : 0}}},
      {"derived",
       {{"parameters", model::count_parameters(plan.model).total()},
        {"total_steps", plan.total_steps},
        {"tokens_per_step", plan.tokens_per_step},
        {"total_tokens", plan.total_steps * plan.tokens_per_step}}},
  };
  io::write_json_file(plan.run / "config.json", json);
}

void report_plan(const RunPlan& plan, Reporter& reporter) {
  const TrainOptions& o = plan.options;
  reporter.heading("configuration");
  reporter.note(describe_options(o));

  const model::ParameterCount count = model::count_parameters(plan.model);
  const auto number = [](auto value) { return short_count(static_cast<double>(value)); };
  const model::KDAConfig& m = plan.model;
  reporter.heading("run");
  reporter.note(
      "model      " + number(count.total()) + " parameters (embedding " + number(count.embedding) +
      ", attention " + number(count.attention) + ", feed-forward " + number(count.feed_forward) +
      "); " + std::to_string(m.num_layers) + " layers, width " + std::to_string(m.hidden_size) +
      ", " + std::to_string(m.num_heads) + " heads, K=" + std::to_string(m.head_k_dim) +
      " V=" + std::to_string(m.head_v_dim) + ", vocabulary " + std::to_string(m.vocab_size));
  const text::TokenDataset& train = *plan.data.train;
  std::string data = "data       " + number(train.num_tokens()) + " tokens in " +
                     number(train.num_documents()) + " documents (" +
                     mib(static_cast<std::int64_t>(train.text_bytes())) + " of text), held-out ";
  data += plan.data.heldout ? number(plan.data.heldout->num_tokens()) + " tokens" : "none";
  reporter.note(data);
  const double epochs = static_cast<double>(plan.total_steps * plan.tokens_per_step) /
                        static_cast<double>(train.num_tokens());
  char text[160];
  std::snprintf(text, sizeof text,
                "budget     %lld steps x %s tokens = %s tokens, %.2f epochs, %.2f tokens/parameter",
                static_cast<long long>(plan.total_steps), number(plan.tokens_per_step).c_str(),
                number(plan.total_steps * plan.tokens_per_step).c_str(), epochs,
                static_cast<double>(plan.total_steps * plan.tokens_per_step) /
                    static_cast<double>(count.total()));
  reporter.note(text);
  reporter.note("threads    " + std::to_string(binding::num_threads()) + ", operator backend " +
                o.backend + ", " + o.dtype + " activations, fp32 weights, seed " +
                std::to_string(o.seed));

  const model::MemoryEstimate memory = memory_of(plan);
  const std::int64_t now = resident_bytes();
  const std::int64_t available = available_bytes();
  reporter.note("memory     about " + mib(memory.total_bytes() + now) + ": program " + mib(now) +
                ", weights " + mib(memory.parameters_bytes) + ", gradients " +
                mib(memory.gradients_bytes) + ", optimizer " + mib(memory.optimizer_bytes) +
                ", activations " + mib(memory.activations_bytes) + ", scratch " +
                mib(memory.scratch_bytes) + "; available " + mib(available));
  if (available > 0 && memory.total_bytes() > available) {
    reporter.warn(std::string("the run may not fit into memory: ") + kMemoryAdvice);
  }
  const std::int64_t checkpoint = estimated_checkpoint_bytes(count.total(), false);
  const std::int64_t disk = checkpoint * (o.keep_last + 2);
  std::error_code status;
  const fs::space_info space = fs::space(plan.run, status);
  std::string line = "disk       checkpoints of " + mib(checkpoint) + ", up to " + mib(disk) +
                     " in " + plan.run.string();
  if (!status) line += "; free " + mib(static_cast<std::int64_t>(space.available));
  reporter.note(line);
  if (!status && static_cast<std::int64_t>(space.available) < disk) {
    reporter.warn("the disk may be too small for the checkpoints of this run");
  }
  if (plan.resumed_from) {
    const TrainerState& s = plan.resumed->state;
    std::string from =
        "resumed    " + plan.resumed_from->path.string() + ": step " + std::to_string(s.step);
    if (s.window.micro > 0) from += " + " + std::to_string(s.window.micro) + " micro-batches";
    from += ", " + number(s.tokens) + " tokens read";
    if (s.has_best) {
      std::snprintf(text, sizeof text, ", best held-out loss %.4f at step %lld", s.best_loss,
                    static_cast<long long>(s.best_step));
      from += text;
    }
    reporter.note(from);
    const TrainOptions& was = plan.resumed->options;
    if (was.steps != o.steps || was.max_tokens != o.max_tokens || was.epochs != o.epochs) {
      reporter.note("           the budget changed: the learning rate follows the new length");
    }
  }
}

std::string preview(const text::PackedBatch& batch, const text::Tokenizer& tokenizer) {
  constexpr std::size_t kSequences = 3;
  constexpr std::size_t kBytesShown = 96;
  std::string lines;
  for (std::size_t n = 0; n + 1 < batch.cu_seqlens.size() && n < kSequences; ++n) {
    const auto begin = batch.inputs.begin() + batch.cu_seqlens[n];
    const auto end = batch.inputs.begin() + batch.cu_seqlens[n + 1];
    std::vector<std::int32_t> ids;
    for (auto it = begin; it != end; ++it)
      ids.push_back(static_cast<std::int32_t>(*it));
    char head[48];
    std::snprintf(head, sizeof head, "  %5zu tokens  ", ids.size());
    lines += head + io::escaped(tokenizer.decode(ids), kBytesShown) + "\n";
  }
  return lines;
}

}  // namespace kda::train
