/// Smoothed value and z-score of a noisy series (loss, gradient norm) for the console line.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

namespace kda::train {

/// Keeps the last kWindow values. Everything is a pure function of the values pushed, so a restored
/// object continues bit by bit.
class RunningStats {
 public:
  static constexpr std::size_t kWindow = 128;
  static constexpr std::size_t kMinForScore = 8;  ///< fewer values give no z-score
  static constexpr double kEmaDecay = 0.95;

  struct State {
    std::deque<double> window;
    double ema_sum = 0;     ///< sum of decay^age * value
    double ema_weight = 0;  ///< sum of decay^age: removes the bias of the start
  };

  /// How many standard deviations `value` lies from the mean of the window *before* it is pushed.
  /// Absent with fewer than kMinForScore values or no spread.
  std::optional<double> z_score(double value) const;

  void push(double value);

  /// Exponential moving average, bias-corrected; 0 before the first value.
  double ema() const;

  const State& state() const { return state_; }
  void restore(State state) { state_ = std::move(state); }

 private:
  State state_;
};

}  // namespace kda::train
