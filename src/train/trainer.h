/// The training loop.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "train/report.h"
#include "train/run_folder.h"
#include "train/run_plan.h"

namespace kda::train {

struct TrainOutcome {
  int signal_number = 0;       ///< > 0: stopped by this signal, everything is saved
  bool stopped_early = false;  ///< --stop-after was reached before the end
  RunPoint point;
  std::int64_t total_steps = 0;
  std::filesystem::path last_checkpoint;
  double loss_ema = 0;
  bool has_best = false;
  double best_loss = 0;
  std::optional<double> best_success;  ///< share of sentences translated, in fine-tuning
  std::int64_t best_step = 0;
  std::int64_t skipped = 0;
  std::int64_t tokens = 0;  ///< read by the whole run
  double tokens_per_parameter = 0;
  double seconds = 0;            ///< of this process, in the loop
  double tokens_per_second = 0;  ///< over the loop, evaluation and saves included
  std::int64_t peak_resident_bytes = 0;
  std::int64_t peak_device_bytes = 0;  ///< GPU memory when lines were shown; 0 on the host
};

/// Points at which a caller may look or interfere.
struct TrainHooks {
  std::function<void(const RunPoint&)> after_micro_batch;
};

/// Runs or continues a training run.
///
/// A stop request (signals.h) ends it within one micro-batch, with everything saved: weights,
/// moments, gradients of the open window, data position. 20 steps, a stop and 20 more give the same
/// bytes as 40 in one go (fp32, same number of threads).
///
/// Errors: kNonFinite with step, layer and last good checkpoint; kInvalidArgument, kUnsupported for
/// options; kIo for files, saying which checkpoint is the last good one. Interrupted when stopped
/// before there was anything to save.
TrainOutcome train(const TrainRequest& request, Reporter& reporter, const TrainHooks& hooks = {});

}  // namespace kda::train
