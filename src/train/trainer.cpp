#include "train/trainer.h"

#include <ATen/Context.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "kda/error.h"
#include "model/weights.h"
#include "train/evaluate.h"
#include "train/process_memory.h"
#include "train/signals.h"
#include "train/train_run.h"

namespace kda::train {
namespace {

model::ModelOptions model_options(const RunPlan& plan) {
  const TrainOptions& o = plan.options;
  model::ModelOptions options;
  options.compute = o.dtype == "bf16" ? DType::kBF16 : DType::kF32;
  options.device = plan.device.device;
  options.backend = o.backend;
  options.seed = static_cast<std::uint64_t>(o.seed);
  return options;
}

OptimizerOptions optimizer_options(const TrainOptions& o) {
  return {o.optimizer, o.beta1, o.beta2, o.eps, o.weight_decay, o.momentum};
}

}  // namespace

TrainRun::TrainRun(RunPlan plan, Reporter& reporter, const TrainHooks& hooks)
    : plan_(std::move(plan)),
      options_(plan_.options),
      reporter_(reporter),
      hooks_(hooks),
      model_(plan_.model, model_options(plan_)),
      optimizer_(make_optimizer(model_.parameters(), optimizer_options(options_))),
      stream_(plan_.data.stream(options_)),
      profiler_(options_.profile, plan_.device.device) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  generator.set_current_seed(static_cast<std::uint64_t>(options_.seed));
  if (options_.optimizer == "muon" && options_.qk_clip > 0 && plan_.model.num_mla_layers() > 0) {
    qk_clip_.emplace(plan_.model, model_.parameters(), options_.qk_clip);
  }
  if (options_.overfit_batch) fixed_batch_ = stream_.next();
  state_.cursor = stream_.cursor();
  if (plan_.resumed) {
    restore_tensors(plan_.resumed_from->path, *plan_.resumed, model_, *optimizer_);
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
  reporter_.note("optimizer  " + optimizer_->description());
  state_.lr_anchor = plan_.schedule.anchor;
  window_cursor_ = state_.cursor;
  metrics_ = std::make_unique<io::JsonlLog>(plan_.run / "metrics.jsonl", state_.step);
  if (plan_.resumed) {
    metrics_->append({{"kind", "resume"}, {"step", state_.step}, {"micro", state_.window.micro}});
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
  text::PackedBatch batch = next_batch();
  state_.tokens += batch.rows * batch.seq_len;
  state_.window.tokens += batch.rows * batch.seq_len;
  ++state_.window.micro;
  // A rejected window still reads its share of the data: the rest of the run keeps its places.
  if (!state_.window.fault.empty() || batch.num_targets == 0) return;

  const BatchTensors tensors = to_tensors(batch);
  profiler_.end_stage(Stage::kData);
  model::ForwardOptions forward;
  forward.recompute_blocks = options_.recompute;
  std::vector<model::LargestLogits> largest;
  if (qk_clip_) forward.largest_logits = &largest;
  const model::LossOutput loss = model_.loss(tensors.packed, tensors.targets, forward);
  if (qk_clip_) qk_clip_->observe(largest);
  profiler_.end_stage(Stage::kForward);
  state_.window.add(loss, reference_tokens());
  profiler_.end_stage(Stage::kBackward);
  unsettled_batches_.push_back(std::move(batch));
  // On the host a loss is there as soon as it is made; a GPU is asked once per step.
  if (plan_.device.device.is_cpu()) settle_window();
}

/// Reads the losses of the open window and rejects it when one is not finite.
void TrainRun::settle_window() {
  const std::vector<text::PackedBatch> batches = std::exchange(unsettled_batches_, {});
  const std::optional<std::size_t> bad = state_.window.settle();
  if (!bad) return;
  std::string fault = "loss is not finite";
  const std::string layer = model_.first_nonfinite(to_tensors(batches[*bad]).packed);
  if (!layer.empty()) fault += "; first bad activation: " + layer;
  const std::string weight = first_nonfinite_parameter(optimizer_->parameters());
  if (!weight.empty()) fault += "; first bad weight: " + weight;
  optimizer_->clear_gradients();
  reject_window(fault);
}

/// Makes an open window fit to be saved. Its gradients are part of a checkpoint; what routers and
/// attention heads did in it is not, so where that matters the run goes back to where the window
/// began.
void TrainRun::close_window() {
  if (plan_.model.moe.enabled() || qk_clip_) {
    rewind_window();
  } else {
    settle_window();
  }
}

/// Takes an open window back to its beginning, as if its micro-batches had not been read.
void TrainRun::rewind_window() {
  state_.tokens -= state_.window.tokens;
  state_.window = {};
  state_.cursor = window_cursor_;
  unsettled_batches_.clear();
  forget_window();
  optimizer_->clear_gradients();
}

/// What layers remember of a window beside gradients.
void TrainRun::forget_window() {
  model_.discard_routing();
  if (qk_clip_) qk_clip_->discard();
}

void TrainRun::poison_gradient() {
  const auto& parameters = optimizer_->parameters();
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
  const GradientStats gradients = optimizer_->gradient_stats();
  if (state_.window.fault.empty() && gradients.num_nonfinite > 0) {
    reject_window("gradient of " + gradients.nearest_nonfinite + " is not finite (" +
                  std::to_string(gradients.num_nonfinite) + " of " +
                  std::to_string(optimizer_->parameters().size()) +
                  " parameters; this one is nearest to the loss)");
  }
  if (!state_.window.fault.empty()) {
    ++state_.skipped;
    record.skipped = true;
    record.why_skipped = state_.window.fault + " (skip " + std::to_string(state_.skipped) + " of " +
                         std::to_string(options_.on_nonfinite.skips_allowed) + ")";
    forget_window();
    return;
  }
  if (state_.window.targets == 0) {
    ++state_.empty_windows;
    record.skipped = true;
    record.why_skipped = "no target in the whole step";
    forget_window();
    return;
  }
  const double to_mean = state_.window.gradient_scale(reference_tokens());
  record.loss = state_.window.mean_loss();
  record.grad_norm = gradients.norm * to_mean;
  record.loss_z = state_.loss_stats.z_score(record.loss);
  record.grad_z = state_.grad_stats.z_score(record.grad_norm);
  state_.loss_stats.push(record.loss);
  state_.grad_stats.push(record.grad_norm);
  optimizer_->step(record.lr, to_mean * clip_scale(record.grad_norm, options_.clip));
  if (qk_clip_) qk_clip_->apply();
  model_.update_routing();
  state_.updates = optimizer_->updates();
}

/// Of all layers with experts: tokens of the busiest one over the mean; nothing without experts.
std::optional<double> TrainRun::largest_expert_load() const {
  std::optional<double> largest;
  for (const model::RoutingLoad& load : model_.routing_loads())
    largest = std::max(largest.value_or(0), load.max_load);
  return largest;
}

void TrainRun::finish_window(Clock::time_point start) {
  settle_window();
  StepRecord record;
  record.lr = plan_.schedule.lr_at(state_.step);
  const std::int64_t window_tokens = state_.window.tokens;
  const Position before = plan_.position(state_.step, state_.tokens - window_tokens);
  const Position now = plan_.position(state_.step + 1, state_.tokens);
  const bool is_due_now =
      is_due(options_.log_every, before, now) || state_.step + 1 == plan_.total_steps;
  if (is_due_now) record.moe_max_load = largest_expert_load();
  apply_update(record);
  optimizer_->clear_gradients();
  state_.window = {};
  window_cursor_ = state_.cursor;
  ++state_.step;
  ++steps_here_;
  tokens_here_ += window_tokens;
  last_window_tokens_ = window_tokens;
  profiler_.end_stage(Stage::kOptimizer);

  record.step = state_.step;
  record.total_steps = plan_.total_steps;
  record.tokens = state_.tokens;
  record.total_tokens = std::max(
      state_.tokens, state_.tokens + (plan_.total_steps - state_.step) * plan_.tokens_per_step);
  record.loss_ema = state_.loss_stats.ema();
  record.epoch = static_cast<double>(state_.tokens) / static_cast<double>(plan_.data.num_tokens());
  const double seconds = seconds_since(start);
  record.step_ms = seconds * 1e3;
  record.tokens_per_second = static_cast<double>(window_tokens) / seconds;
  record.resident_bytes = resident_bytes();
  record.eta_seconds = seconds_since(loop_start_) / static_cast<double>(steps_here_) *
                       static_cast<double>(plan_.total_steps - state_.step);
  const bool is_shown = is_due_now || steps_here_ == 1 || record.skipped;
  if (is_shown && !plan_.device.device.is_cpu()) {
    const DeviceMemory memory = device_memory(plan_.device.device);
    record.device_bytes = memory.total - memory.free;
    outcome_.peak_device_bytes = std::max(outcome_.peak_device_bytes, record.device_bytes);
  }
  metrics_->append(to_json(record));
  reporter_.step(record, is_shown);
  if (const auto report = profiler_.end_step(window_tokens)) {
    reporter_.note("profile of " + std::to_string(report->steps) + " steps\n" + report->text());
  }
}

/// One optimizer step; false when a stop request cut it short.
bool TrainRun::run_window() {
  const Clock::time_point start = Clock::now();
  profiler_.begin_step();
  while (state_.window.micro < options_.grad_accum) {
    run_micro_batch();
    if (!options_.overfit_batch) state_.cursor = stream_.cursor();
    if (hooks_.after_micro_batch) hooks_.after_micro_batch(state_.point());
    if (stop_signal() != 0 && state_.window.micro < options_.grad_accum) return false;
  }
  finish_window(start);
  return true;
}

TrainOutcome TrainRun::run() {
  if (!plan_.resumed) {
    reporter_.heading("first batch");
    reporter_.note(preview(plan_.data.stream(options_)->next(), *plan_.tokenizer));
    // What the untrained weights say: the later samples are read beside it.
    state_.sample_pending = samples();
  }
  reporter_.heading("training");
  loop_start_ = Clock::now();
  bool complete = run_events();
  if (complete && new_best_) save();
  while (complete && stop_signal() == 0 && state_.step < plan_.total_steps) {
    complete = run_window();
    if (!complete) break;
    const Position before = plan_.position(state_.step - 1, state_.tokens - last_window_tokens_);
    const Position now = plan_.position(state_.step, state_.tokens);
    const bool last = state_.step == plan_.total_steps;
    const bool stop_here = state_.step == options_.stop_after.value;
    state_.eval_pending = measures() && options_.eval_every.every > 0 &&
                          (last || is_due(options_.eval_every, before, now));
    state_.sample_pending = samples() && (last || is_due(options_.sample_every, before, now));
    complete = run_events();
    if (last || stop_here || new_best_ || is_due(options_.save_every, before, now)) save();
    if (stop_here) break;
  }
  if (state_.window.micro > 0) close_window();
  if (saved_point_ != state_.point() || new_best_) save();
  settle_outcome();
  return outcome_;
}

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
