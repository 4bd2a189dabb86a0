/// What a run remembers beside its tensors: everything that the next step depends on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/json.h"
#include "text/packing.h"
#include "train/accumulation.h"
#include "train/run_folder.h"
#include "train/running_stats.h"
#include "train/schedule.h"

namespace kda::train {

/// Restoring it, the weights, the moments and the pending gradients continues the run bit by bit.
struct TrainerState {
  // Where the run stands.
  std::int64_t step = 0;     ///< optimizer steps taken, skipped ones included
  std::int64_t updates = 0;  ///< of these, the ones that changed the weights: AdamW's t
  std::int64_t tokens = 0;   ///< input tokens read
  text::DataCursor cursor;
  std::int64_t skipped = 0;        ///< steps left out because of NaN or infinity
  std::int64_t empty_windows = 0;  ///< steps without a single target
  double elapsed_seconds = 0;      ///< over all processes of the run

  AccumulationWindow window;  ///< the one that is open

  // Console statistics.
  RunningStats loss_stats;
  RunningStats grad_stats;

  // Held-out results.
  bool has_best = false;
  double best_loss = 0;
  std::optional<double> best_success;  ///< of translations, in fine-tuning
  std::int64_t best_step = 0;

  std::optional<LrAnchor> lr_anchor;  ///< where the length of the run was changed

  // Due at `step` but cut off by a signal: the resumed run does them first.
  bool eval_pending = false;
  bool sample_pending = false;

  RunPoint point() const { return {step, window.micro}; }
};

io::Json to_json(const TrainerState& state);

/// Throws kIo naming `source` for missing, unknown or malformed fields.
TrainerState state_from_json(const io::Json& json, const std::string& source);

}  // namespace kda::train
