/// One optimizer step's gradient, gathered from micro-batches and weighted by tokens.
///
/// The gradient of the step is that of (sum of all cross entropies) / (number of all targets), as
/// if the micro-batches were one batch. Their target counts differ (document ends, ignored tokens),
/// so the mean of their means would be another number. The count is known only at the end; until
/// then gradients are held in units of 1 / `reference_tokens`, a constant of the run near the true
/// count.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/causal_lm.h"

namespace kda::train {

struct AccumulationWindow {
  std::int64_t micro = 0;             ///< micro-batches done
  std::int64_t tokens = 0;            ///< their input tokens
  double loss_sum = 0;                ///< sum of their cross entropies, as far as they are settled
  std::int64_t targets = 0;           ///< sum of their target counts
  std::string fault;                  ///< why the step will be skipped, "" while it is sound
  std::vector<at::Tensor> unsettled;  ///< losses that are still on the device, in order

  /// Runs backward on a micro-batch and adds it. Its loss stays where it is: reading it would make
  /// the host wait for the device.
  void add(const model::LossOutput& loss, std::int64_t reference_tokens);

  /// Reads the losses that are still on the device, in one copy, and adds them in order. Returns
  /// the index among them of the first that is not finite.
  std::optional<std::size_t> settle();

  double mean_loss() const;

  /// What turns the gathered gradients into those of the mean: reference_tokens / targets.
  double gradient_scale(std::int64_t reference_tokens) const;
};

}  // namespace kda::train
