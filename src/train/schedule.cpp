#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "io/number_text.h"
#include "kda/error.h"

namespace kda::train {
namespace {

[[noreturn]] void refuse_schedule(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, text);
}

/// From 1 at `begin` to 0 at `end` along half a cosine.
double half_cosine(std::int64_t step, std::int64_t begin, std::int64_t end) {
  if (step >= end) return 0;
  const double progress = static_cast<double>(step - begin) / static_cast<double>(end - begin);
  return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace

const char* name_of(ScheduleKind kind) { return kind == ScheduleKind::kCosine ? "cosine" : "wsd"; }

ScheduleKind schedule_from(const std::string& name) {
  if (name == "cosine") return ScheduleKind::kCosine;
  if (name == "wsd") return ScheduleKind::kWsd;
  refuse_schedule("--schedule: expected cosine or wsd, got '" + name + "'");
}

void Schedule::check() const {
  if (!(base_lr > 0) || !std::isfinite(base_lr)) {
    refuse_schedule("--lr: expected a finite number > 0, got " + io::number_text(base_lr));
  }
  if (total_steps <= 0)
    refuse_schedule("--steps: expected > 0, got " + std::to_string(total_steps));
  if (warmup_steps < 0 || warmup_steps > total_steps) {
    refuse_schedule("--warmup: expected 0 to " + std::to_string(total_steps) +
                    " (the steps of the run), got " + std::to_string(warmup_steps));
  }
  if (kind == ScheduleKind::kWsd && (decay_steps < 0 || decay_steps > total_steps - warmup_steps)) {
    refuse_schedule("--decay: expected 0 to " + std::to_string(total_steps - warmup_steps) +
                    " (the steps of the run after the warm-up), got " +
                    std::to_string(decay_steps));
  }
  if (!(floor_ratio >= 0 && floor_ratio <= 1)) {
    refuse_schedule("--lr-floor: expected a ratio in [0, 1], got " + io::number_text(floor_ratio));
  }
}

double Schedule::lr_at(std::int64_t step) const {
  const bool anchored = anchor && step >= anchor->step;
  if (!anchored && step < warmup_steps) {
    return base_lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  if (step >= total_steps) return base_lr * floor_ratio;
  std::int64_t begin = anchored ? anchor->step : warmup_steps;
  if (kind == ScheduleKind::kWsd) begin = std::max(begin, total_steps - decay_steps);
  if (!anchored) {
    if (step < begin) return base_lr;
    return base_lr * (floor_ratio + (1.0 - floor_ratio) * half_cosine(step, begin, total_steps));
  }
  if (step < begin) return anchor->lr;
  const double floor = std::min(base_lr * floor_ratio, anchor->lr);
  return floor + (anchor->lr - floor) * half_cosine(step, begin, total_steps);
}

Schedule continued_schedule(const Schedule& before, Schedule next, std::int64_t step) {
  next.anchor = before.anchor;
  const bool same_length = before.total_steps == next.total_steps;
  if (same_length || step < next.warmup_steps) return next;
  const double lr = before.lr_at(step);
  Schedule plain = next;
  plain.anchor.reset();
  if (!before.anchor && plain.lr_at(step) == lr) return plain;
  next.anchor = LrAnchor{step, lr};
  return next;
}

}  // namespace kda::train
