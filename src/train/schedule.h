/// The learning rate of a run: linear warm-up, then cosine down to a floor.
#pragma once

#include <cstdint>

namespace kda::train {

/// Math, for the optimizer step s = 0 .. total_steps - 1 about to be taken:
///   s < W:   base * (s + 1) / W
///   else:    base * (f + (1 - f) * (1 + cos(pi * (s - W) / (total - W))) / 2)
/// with W = warmup_steps and f = floor_ratio. At s >= total_steps it stays at base * f.
struct CosineSchedule {
  double base_lr = 3e-4;
  std::int64_t warmup_steps = 0;  ///< in [0, total_steps]
  std::int64_t total_steps = 0;   ///< > 0
  double floor_ratio = 0.1;       ///< in [0, 1]

  /// Throws kInvalidArgument when a field is outside its range.
  void check() const;

  double lr_at(std::int64_t step) const;
};

}  // namespace kda::train
