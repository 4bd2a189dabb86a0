#include "train/running_stats.h"

#include <cmath>

namespace kda::train {

std::optional<double> RunningStats::z_score(double value) const {
  const auto& window = state_.window;
  if (window.size() < kMinForScore) return std::nullopt;
  // Two passes over at most 128 doubles: exact enough, and free of the drift of running sums.
  double mean = 0;
  for (double v : window)
    mean += v;
  mean /= static_cast<double>(window.size());
  double variance = 0;
  for (double v : window)
    variance += (v - mean) * (v - mean);
  variance /= static_cast<double>(window.size());
  if (!(variance > 0)) return std::nullopt;
  return (value - mean) / std::sqrt(variance);
}

void RunningStats::push(double value) {
  state_.window.push_back(value);
  if (state_.window.size() > kWindow) state_.window.pop_front();
  state_.ema_sum = kEmaDecay * state_.ema_sum + value;
  state_.ema_weight = kEmaDecay * state_.ema_weight + 1.0;
}

double RunningStats::ema() const {
  return state_.ema_weight > 0 ? state_.ema_sum / state_.ema_weight : 0.0;
}

}  // namespace kda::train
