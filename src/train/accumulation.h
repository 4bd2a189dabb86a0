/// One optimizer step's gradient, gathered from micro-batches and weighted by tokens.
///
/// The gradient of the step is that of (sum of all cross entropies) / (number of all targets), as
/// if the micro-batches were one batch. Their target counts differ (document ends, ignored tokens),
/// so the mean of their means would be another number. The count is known only at the end; until
/// then gradients are held in units of 1 / `reference_tokens`, a constant of the run near the true
/// count.
#pragma once

#include <cstdint>
#include <string>

#include "model/causal_lm.h"

namespace kda::train {

struct AccumulationWindow {
  std::int64_t micro = 0;    ///< micro-batches done
  double loss_sum = 0;       ///< sum of their cross entropies
  std::int64_t targets = 0;  ///< sum of their target counts
  std::string fault;         ///< why the step will be skipped, "" while it is sound

  /// Runs backward on a micro-batch whose loss is finite and adds it.
  void add(const model::LossOutput& loss, double loss_value, std::int64_t reference_tokens);

  double mean_loss() const;

  /// What turns the gathered gradients into those of the mean: reference_tokens / targets.
  double gradient_scale(std::int64_t reference_tokens) const;
};

}  // namespace kda::train
