#include "train/schedule.h"

#include <cmath>
#include <numbers>
#include <string>

#include "kda/error.h"

namespace kda::train {

void CosineSchedule::check() const {
  const auto refuse = [](const std::string& text) {
    throw Error(ErrorCode::kInvalidArgument, text);
  };
  if (!(base_lr > 0) || !std::isfinite(base_lr)) {
    refuse("lr: expected a finite number > 0, got " + std::to_string(base_lr));
  }
  if (total_steps <= 0) refuse("steps: expected > 0, got " + std::to_string(total_steps));
  if (warmup_steps < 0 || warmup_steps > total_steps) {
    refuse("warmup: expected 0 to " + std::to_string(total_steps) +
           " (the steps of the run), got " + std::to_string(warmup_steps));
  }
  if (!(floor_ratio >= 0 && floor_ratio <= 1)) {
    refuse("lr-floor: expected a ratio in [0, 1], got " + std::to_string(floor_ratio));
  }
}

double CosineSchedule::lr_at(std::int64_t step) const {
  if (step < warmup_steps) {
    return base_lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  if (step >= total_steps) return base_lr * floor_ratio;
  const double progress =
      static_cast<double>(step - warmup_steps) / static_cast<double>(total_steps - warmup_steps);
  const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return base_lr * (floor_ratio + (1.0 - floor_ratio) * cosine);
}

}  // namespace kda::train
