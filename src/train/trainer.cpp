#include "train/trainer.h"

#include <ATen/Context.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "io/jsonl_log.h"
#include "io/sha256.h"
#include "kda/error.h"
#include "model/causal_lm.h"
#include "model/generate.h"
#include "model/weights.h"
#include "train/evaluate.h"
#include "train/loss_plot.h"
#include "train/optimizer.h"
#include "train/process_memory.h"
#include "train/sample_text.h"
#include "train/signals.h"

namespace kda::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return to_text(value);
}

class TrainRun {
 public:
  TrainRun(RunPlan plan, Reporter& reporter, const TrainHooks& hooks);
  TrainOutcome run();

 private:
  bool run_window();
  void run_micro_batch();
  void finish_window(Clock::time_point start);
  void reject_window(const std::string& fault);
  void apply_update(StepRecord& record);
  bool run_events();
  void run_evaluation();
  bool run_samples();
  void save();
  void poison_gradient();
  std::string good_checkpoint() const;
  void restore_best();
  void settle_outcome();
  text::PackedBatch next_batch();
  std::int64_t reference_tokens() const { return options_.batch * options_.seq_len; }

  RunPlan plan_;
  const TrainOptions& options_;
  Reporter& reporter_;
  const TrainHooks& hooks_;
  model::CausalLM model_;
  AdamW optimizer_;
  text::PackedStream stream_;
  std::optional<text::PackedBatch> fixed_batch_;  ///< --overfit-batch
  TrainerState state_;
  std::unique_ptr<io::JsonlLog> metrics_;
  std::optional<RunPoint> saved_point_;
  bool new_best_ = false;
  Clock::time_point loop_start_;
  std::int64_t steps_here_ = 0;
  double elapsed_before_ = 0;
  TrainOutcome outcome_;
};

model::ModelOptions model_options(const TrainOptions& o) {
  model::ModelOptions options;
  options.compute = o.dtype == "bf16" ? DType::kBF16 : DType::kF32;
  options.backend = o.backend;
  options.seed = static_cast<std::uint64_t>(o.seed);
  return options;
}

text::PackingOptions packing_options(const RunPlan& plan) {
  text::PackingOptions options;
  options.seq_len = plan.options.seq_len;
  options.rows = plan.options.batch;
  options.seed = static_cast<std::uint64_t>(plan.options.seed);
  return options;
}

TrainRun::TrainRun(RunPlan plan, Reporter& reporter, const TrainHooks& hooks)
    : plan_(std::move(plan)),
      options_(plan_.options),
      reporter_(reporter),
      hooks_(hooks),
      model_(plan_.model, model_options(options_)),
      optimizer_(model_.parameters(),
                 {options_.beta1, options_.beta2, options_.eps, options_.weight_decay}),
      stream_(plan_.data.train, packing_options(plan_)) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  generator.set_current_seed(static_cast<std::uint64_t>(options_.seed));
  if (options_.overfit_batch) fixed_batch_ = stream_.next();
  state_.cursor = stream_.cursor();
  if (plan_.resumed) {
    restore_tensors(plan_.resumed_from->path, *plan_.resumed, model_, optimizer_);
    state_ = plan_.resumed->state;
    if (!options_.overfit_batch) stream_.restore(state_.cursor);
    saved_point_ = state_.point();
    elapsed_before_ = state_.elapsed_seconds;
    outcome_.last_checkpoint = plan_.resumed_from->path;
    restore_best();
  } else if (!options_.init_from.empty()) {
    const CheckpointFolder from = resolve_checkpoint(options_.init_from);
    model::load_weights(model_, (from.path / "model.safetensors").string());
    reporter_.note("weights    from " + from.path.string());
  }
  metrics_ = std::make_unique<io::JsonlLog>(plan_.run / "metrics.jsonl", state_.step);
  if (plan_.resumed) {
    metrics_->append({{"kind", "resume"}, {"step", state_.step}, {"micro", state_.window.micro}});
  }
}

/// best.json may speak of steps that are about to run again, or of a folder that is gone.
void TrainRun::restore_best() {
  const std::filesystem::path folder = plan_.run / folder_name({state_.best_step, 0});
  if (state_.has_best && !std::filesystem::exists(folder)) {
    reporter_.warn("the best checkpoint " + folder.string() + " is gone: the best starts anew");
    state_.has_best = false;
  }
  if (state_.has_best) {
    write_best(plan_.run, {state_.best_step, state_.best_loss});
  } else {
    clear_best(plan_.run);
  }
}

text::PackedBatch TrainRun::next_batch() {
  if (fixed_batch_) return *fixed_batch_;
  return stream_.next();
}

std::string TrainRun::good_checkpoint() const {
  return outcome_.last_checkpoint.empty()
             ? "there is no checkpoint yet"
             : "last good checkpoint: " + outcome_.last_checkpoint.string();
}

/// A loss or gradient that is not finite: skip the window if the user allows it, else stop.
void TrainRun::reject_window(const std::string& fault) {
  const std::int64_t allowed = options_.on_nonfinite.skips_allowed;
  if (state_.skipped < allowed) {
    state_.window.fault = fault;
    return;
  }
  std::string text = "step " + std::to_string(state_.step + 1) + ": " + fault;
  if (allowed > 0) {
    text += "; " + std::to_string(state_.skipped) + " of " + std::to_string(allowed) +
            " allowed skips are used up";
  }
  throw Error(ErrorCode::kNonFinite, text + "; " + good_checkpoint());
}

void TrainRun::run_micro_batch() {
  const text::PackedBatch batch = next_batch();
  state_.tokens += batch.rows * batch.seq_len;
  ++state_.window.micro;
  // A rejected window still reads its share of the data: the rest of the run keeps its places.
  if (!state_.window.fault.empty() || batch.num_targets == 0) return;

  const BatchTensors tensors = to_tensors(batch);
  model::ForwardOptions forward;
  forward.recompute_blocks = options_.recompute;
  const model::LossOutput loss = model_.loss(tensors.packed, tensors.targets, forward);
  const double loss_sum = loss.loss_sum.item<double>();
  if (!std::isfinite(loss_sum)) {
    std::string fault = "loss is " + number_text(loss_sum);
    const std::string layer = model_.first_nonfinite(tensors.packed);
    if (!layer.empty()) fault += "; first bad activation: " + layer;
    const std::string weight = first_nonfinite_parameter(optimizer_.parameters());
    if (!weight.empty()) fault += "; first bad weight: " + weight;
    optimizer_.clear_gradients();
    reject_window(fault);
    return;
  }
  state_.window.add(loss, loss_sum, reference_tokens());
}

void TrainRun::poison_gradient() {
  const auto& parameters = optimizer_.parameters();
  const std::string layer = "layers." + std::to_string(plan_.model.num_layers / 2) + ".";
  for (const model::Parameter& p : parameters) {
    if (p.name.find(layer) == std::string::npos || !p.tensor.grad().defined()) continue;
    p.tensor.mutable_grad().view(-1)[0] = std::numeric_limits<float>::quiet_NaN();
    return;
  }
}

/// The update of a complete window; leaves `record` with what it looked like.
void TrainRun::apply_update(StepRecord& record) {
  if (options_.poison_step.value == state_.step + 1) poison_gradient();
  const GradientStats gradients = optimizer_.gradient_stats();
  if (state_.window.fault.empty() && gradients.num_nonfinite > 0) {
    reject_window("gradient of " + gradients.nearest_nonfinite + " is not finite (" +
                  std::to_string(gradients.num_nonfinite) + " of " +
                  std::to_string(optimizer_.parameters().size()) +
                  " parameters; this one is nearest to the loss)");
  }
  if (!state_.window.fault.empty()) {
    ++state_.skipped;
    record.skipped = true;
    record.why_skipped = state_.window.fault + " (skip " + std::to_string(state_.skipped) + " of " +
                         std::to_string(options_.on_nonfinite.skips_allowed) + ")";
    return;
  }
  if (state_.window.targets == 0) {
    ++state_.empty_windows;
    record.skipped = true;
    record.why_skipped = "no target in the whole step";
    return;
  }
  const double to_mean = state_.window.gradient_scale(reference_tokens());
  record.loss = state_.window.mean_loss();
  record.grad_norm = gradients.norm * to_mean;
  record.loss_z = state_.loss_stats.z_score(record.loss);
  record.grad_z = state_.grad_stats.z_score(record.grad_norm);
  state_.loss_stats.push(record.loss);
  state_.grad_stats.push(record.grad_norm);
  optimizer_.step(record.lr, to_mean * clip_scale(record.grad_norm, options_.clip));
  state_.updates = optimizer_.updates();
}

void TrainRun::finish_window(Clock::time_point start) {
  StepRecord record;
  record.lr = plan_.schedule.lr_at(state_.step);
  apply_update(record);
  optimizer_.clear_gradients();
  state_.window = {};
  ++state_.step;
  ++steps_here_;

  record.step = state_.step;
  record.total_steps = plan_.total_steps;
  record.tokens = state_.tokens;
  record.total_tokens = plan_.total_steps * plan_.tokens_per_step;
  record.loss_ema = state_.loss_stats.ema();
  record.epoch =
      static_cast<double>(state_.tokens) / static_cast<double>(plan_.data.train->num_tokens());
  const double seconds = seconds_since(start);
  record.step_ms = seconds * 1e3;
  record.tokens_per_second = static_cast<double>(plan_.tokens_per_step) / seconds;
  record.resident_bytes = resident_bytes();
  record.eta_seconds = seconds_since(loop_start_) / static_cast<double>(steps_here_) *
                       static_cast<double>(plan_.total_steps - state_.step);
  metrics_->append(to_json(record));
  const Position before = plan_.position(state_.step - 1);
  const Position now = plan_.position(state_.step);
  reporter_.step(record, is_due(options_.log_every, before, now) || steps_here_ == 1 ||
                             state_.step == plan_.total_steps || record.skipped);
}

/// One optimizer step; false when a stop request cut it short.
bool TrainRun::run_window() {
  const Clock::time_point start = Clock::now();
  while (state_.window.micro < options_.grad_accum) {
    run_micro_batch();
    if (!options_.overfit_batch) state_.cursor = stream_.cursor();
    if (hooks_.after_micro_batch) hooks_.after_micro_batch(state_.point());
    if (stop_signal() != 0 && state_.window.micro < options_.grad_accum) return false;
  }
  finish_window(start);
  return true;
}

void TrainRun::run_evaluation() {
  EvalOptions eval;
  eval.batch = options_.batch;
  eval.seq_len = options_.seq_len;
  eval.max_tokens = options_.eval_tokens.value;
  EvalResult result;
  try {
    result = evaluate(model_, plan_.data.heldout, *plan_.tokenizer, eval, reporter_);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNonFinite) throw;
    throw Error(error.code(), "step " + std::to_string(state_.step) + ": " + error.what() + "; " +
                                  good_checkpoint());
  }
  EvalRecord record;
  record.step = state_.step;
  record.total_steps = plan_.total_steps;
  record.loss = result.loss;
  record.bits_per_byte = result.bits_per_byte;
  record.targets = result.targets;
  record.bytes = result.bytes;
  record.seconds = result.seconds;
  if (!state_.has_best || result.loss < state_.best_loss) {
    state_.has_best = true;
    state_.best_loss = result.loss;
    state_.best_step = state_.step;
    new_best_ = true;
    record.best = true;
  }
  record.best_loss = state_.best_loss;
  record.best_step = state_.best_step;
  metrics_->append(to_json(record));
  reporter_.evaluation(record);
}

/// False when a stop request cut it short.
bool TrainRun::run_samples() {
  for (const std::string& prompt : options_.sample_prompt) {
    TextSampleOptions how;
    how.max_new_tokens = options_.sample_tokens;
    how.sampling.temperature = 0.8;
    how.sampling.top_k = 40;
    how.sampling.seed = static_cast<std::uint64_t>(options_.seed);
    const TextSample sample = sample_text(model_, *plan_.tokenizer, prompt, how);
    if (stop_signal() != 0) return false;
    const SampleRecord record{state_.step, prompt, sample.text, name_of(sample.reason)};
    metrics_->append(to_json(record));
    reporter_.sample(record);
  }
  return true;
}

/// Held-out loss and samples that are due; false when a stop request cut them short. What did not
/// finish stays marked as pending in the state.
bool TrainRun::run_events() {
  try {
    if (state_.eval_pending) {
      run_evaluation();
      state_.eval_pending = false;
    }
    if (state_.sample_pending) {
      if (!run_samples()) return false;
      state_.sample_pending = false;
    }
  } catch (const Interrupted&) {
    return false;
  }
  return true;
}

void TrainRun::save() {
  const Clock::time_point start = Clock::now();
  state_.elapsed_seconds = elapsed_before_ + seconds_since(loop_start_);
  const std::filesystem::path folder = plan_.run / folder_name(state_.point());
  TrainerFile file;
  file.options = options_;
  file.state = state_;
  file.tokenizer_sha256 = io::to_hex(plan_.tokenizer->info().sha256);
  file.vocab_size = plan_.tokenizer->vocab_size();
  file.dataset = io::to_hex(plan_.data.train->fingerprint());
  SaveRecord record;
  try {
    record.bytes = save_checkpoint(plan_.run, model_, optimizer_, *plan_.tokenizer, file);
  } catch (const Error& error) {
    throw Error(error.code(), std::string(error.what()) + "; the checkpoint of step " +
                                  std::to_string(state_.step) + " was not saved; " +
                                  good_checkpoint());
  }
  saved_point_ = state_.point();
  outcome_.last_checkpoint = folder;
  if (new_best_) write_best(plan_.run, {state_.best_step, state_.best_loss});
  prune_checkpoints(plan_.run, state_.point(), options_.keep_last,
                    state_.has_best ? std::optional(state_.best_step) : std::nullopt);
  record.step = state_.step;
  record.folder = folder.string();
  record.best = std::exchange(new_best_, false);
  record.seconds = seconds_since(start);
  metrics_->append(to_json(record));
  metrics_->sync();
  write_loss_plot(plan_.run);
  reporter_.saved(record);
}

void TrainRun::settle_outcome() {
  outcome_.signal_number = stop_signal();
  outcome_.point = state_.point();
  outcome_.total_steps = plan_.total_steps;
  outcome_.stopped_early = outcome_.signal_number == 0 && state_.step < plan_.total_steps;
  outcome_.loss_ema = state_.loss_stats.ema();
  outcome_.has_best = state_.has_best;
  outcome_.best_loss = state_.best_loss;
  outcome_.best_step = state_.best_step;
  outcome_.skipped = state_.skipped;
  outcome_.seconds = seconds_since(loop_start_);
  outcome_.tokens_per_second =
      static_cast<double>(steps_here_ * plan_.tokens_per_step) / outcome_.seconds;
  outcome_.peak_resident_bytes = peak_resident_bytes();
}

TrainOutcome TrainRun::run() {
  if (!plan_.resumed) {
    text::PackedStream look(plan_.data.train, packing_options(plan_));
    reporter_.heading("first batch");
    reporter_.note(preview(look.next(), *plan_.tokenizer));
  }
  reporter_.heading("training");
  loop_start_ = Clock::now();
  bool complete = run_events();
  if (complete && new_best_) save();
  while (complete && stop_signal() == 0 && state_.step < plan_.total_steps) {
    complete = run_window();
    if (!complete) break;
    const Position before = plan_.position(state_.step - 1);
    const Position now = plan_.position(state_.step);
    const bool last = state_.step == plan_.total_steps;
    const bool stop_here = state_.step == options_.stop_after.value;
    state_.eval_pending = plan_.data.heldout && options_.eval_every.every > 0 &&
                          (last || is_due(options_.eval_every, before, now));
    state_.sample_pending = options_.sample_every.every > 0 && options_.sample_tokens > 0 &&
                            (last || is_due(options_.sample_every, before, now));
    complete = run_events();
    if (last || stop_here || new_best_ || is_due(options_.save_every, before, now)) save();
    if (stop_here) break;
  }
  if (saved_point_ != state_.point() || new_best_) save();
  settle_outcome();
  return outcome_;
}

}  // namespace

TrainOutcome train(const TrainRequest& request, Reporter& reporter, const TrainHooks& hooks) {
  RunPlan plan = make_plan(request, reporter);
  if (!plan.resumed) clear_run(plan.run);
  report_plan(plan, reporter);
  write_run_config(plan);
  poll_stop();
  TrainRun run(std::move(plan), reporter, hooks);
  return run.run();
}

}  // namespace kda::train
