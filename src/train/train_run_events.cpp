#include <exception>
#include <utility>

#include "io/sha256.h"
#include "kda/error.h"
#include "model/generate.h"
#include "text/prompts.h"
#include "train/loss_plot.h"
#include "train/process_memory.h"
#include "train/sample_text.h"
#include "train/signals.h"
#include "train/train_run.h"

namespace kda::train {

/// best.json may speak of steps that are about to run again, or of a folder that is gone.
void TrainRun::restore_best() {
  const std::filesystem::path folder = plan_.run / folder_name({state_.best_step, 0});
  if (state_.has_best && !std::filesystem::exists(folder)) {
    reporter_.warn("the best checkpoint " + folder.string() + " is gone: the best starts anew");
    state_.has_best = false;
  }
  if (state_.has_best) {
    write_best(plan_.run, {state_.best_step, state_.best_loss, state_.best_success});
  } else {
    clear_best(plan_.run);
  }
}

void TrainRun::measure_loss(EvalRecord& record) {
  record.has_loss = plan_.data.has_heldout();
  if (!record.has_loss) return;
  EvalOptions eval;
  eval.batch = options_.batch;
  eval.seq_len = options_.seq_len;
  eval.max_tokens = options_.eval_tokens.value;
  const EvalResult result = plan_.data.evaluate_heldout(model_, *plan_.tokenizer, eval, reporter_);
  record.loss = result.loss;
  record.bits_per_byte = result.bits_per_byte;
  record.targets = result.targets;
  record.bytes = result.bytes;
  record.seconds += result.seconds;
}

void TrainRun::measure_translations(EvalRecord& record) {
  if (plan_.translations.empty()) return;
  const TranslationScore score =
      translate_sets(model_, *plan_.tokenizer, plan_.translations, options_.mt_tokens, reporter_);
  record.mt_sentences = score.sentences;
  record.success_rate = score.success_rate;
  record.mean_chrf = score.mean_chrf;
  record.seconds += score.seconds;
  const SampleRecord sample{state_.step, score.sample_source, score.sample_output, "translation"};
  metrics_->append(to_json(sample));
  reporter_.sample(sample);
}

/// More sentences translated; with as many, the lower loss.
bool TrainRun::is_better(const EvalRecord& record) const {
  if (!state_.has_best) return true;
  const double best_success = state_.best_success.value_or(0);
  if (record.mt_sentences > 0 && record.success_rate != best_success) {
    return record.success_rate > best_success;
  }
  return record.has_loss && record.loss < state_.best_loss;
}

void TrainRun::run_evaluation() {
  EvalRecord record;
  record.step = state_.step;
  record.total_steps = plan_.total_steps;
  try {
    measure_loss(record);
    measure_translations(record);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNonFinite) throw;
    throw Error(error.code(), "step " + std::to_string(state_.step) + ": " + error.what() + "; " +
                                  good_checkpoint());
  }
  if (is_better(record)) {
    state_.has_best = true;
    state_.best_loss = record.loss;
    state_.best_step = state_.step;
    if (record.mt_sentences > 0) state_.best_success = record.success_rate;
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
  file.dataset = plan_.data.fingerprint();
  file.prompt_version = options_.task == Task::kSft ? text::kPromptVersion : 0;
  SaveRecord record;
  try {
    record.bytes = save_checkpoint(plan_.run, model_, *optimizer_, *plan_.tokenizer, file);
  } catch (const Error& error) {
    throw Error(error.code(), std::string(error.what()) + "; the checkpoint of step " +
                                  std::to_string(state_.step) + " was not saved; " +
                                  good_checkpoint());
  }
  saved_point_ = state_.point();
  outcome_.last_checkpoint = folder;
  if (new_best_) {
    write_best(plan_.run, {state_.best_step, state_.best_loss, state_.best_success});
  }
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
  outcome_.best_success = state_.best_success;
  outcome_.best_step = state_.best_step;
  outcome_.skipped = state_.skipped;
  outcome_.tokens = state_.tokens;
  outcome_.tokens_per_parameter =
      static_cast<double>(state_.tokens) / static_cast<double>(model_.num_parameters());
  outcome_.seconds = seconds_since(loop_start_);
  outcome_.tokens_per_second = static_cast<double>(tokens_here_) / outcome_.seconds;
  outcome_.peak_resident_bytes = peak_resident_bytes();
}

}  // namespace kda::train
