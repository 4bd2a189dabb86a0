/// One run from its plan to its end: the state and the steps behind `train` (trainer.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/jsonl_log.h"
#include "model/causal_lm.h"
#include "train/optimizer.h"
#include "train/prefetch.h"
#include "train/profile.h"
#include "train/qk_clip.h"
#include "train/run_plan.h"
#include "train/trainer.h"
#include "train/trainer_state.h"

namespace kda::train {

class TrainRun {
 public:
  TrainRun(RunPlan plan, Reporter& reporter, const TrainHooks& hooks);
  TrainOutcome run();

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  // trainer.cpp: the loop and its steps.
  bool run_window();
  void run_micro_batch();
  void settle_window();
  void rewind_window();
  void close_window();
  void forget_window();
  void finish_window(Clock::time_point start);
  std::optional<double> largest_expert_load() const;
  void reject_window(const std::string& fault);
  void apply_update(StepRecord& record);
  void poison_gradient();
  text::PackedBatch next_batch();
  std::int64_t reference_tokens() const { return options_.batch * options_.seq_len; }

  // train_run_events.cpp: what happens between steps.
  bool run_events();
  void run_evaluation();
  void measure_loss(EvalRecord& record);
  void measure_translations(EvalRecord& record);
  bool is_better(const EvalRecord& record) const;
  bool run_samples();
  void save();
  std::string good_checkpoint() const;
  void restore_best();
  void settle_outcome();
  bool samples() const { return options_.sample_every.every > 0 && options_.sample_tokens > 0; }
  bool measures() const { return plan_.data.has_heldout() || !plan_.translations.empty(); }

  RunPlan plan_;
  const TrainOptions& options_;
  Reporter& reporter_;
  const TrainHooks& hooks_;
  model::CausalLM model_;
  std::unique_ptr<Optimizer> optimizer_;
  Prefetch stream_;
  std::optional<QkClip> qk_clip_;
  StepProfiler profiler_;
  std::optional<text::PackedBatch> fixed_batch_;  ///< --overfit-batch
  TrainerState state_;
  text::DataCursor window_cursor_;  ///< where the open window began
  /// Of the open window, as long as their losses are on the device: to find the bad layer in.
  std::vector<text::PackedBatch> unsettled_batches_;
  std::unique_ptr<io::JsonlLog> metrics_;
  std::optional<RunPoint> saved_point_;
  bool new_best_ = false;
  Clock::time_point loop_start_;
  std::int64_t steps_here_ = 0;
  std::int64_t tokens_here_ = 0;
  std::int64_t last_window_tokens_ = 0;
  double elapsed_before_ = 0;
  TrainOutcome outcome_;
};

}  // namespace kda::train
