/// Where the time of a training step goes: stages, and the share of the KDA operator.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace kda::train {

enum class Stage : std::uint8_t { kData, kForward, kBackward, kOptimizer, kOther };
inline constexpr std::size_t kNumStages = 5;
const char* name_of(Stage stage);

struct ProfileReport {
  std::int64_t steps = 0;
  std::array<double, kNumStages> seconds{};  ///< sums over the steps, indexed by Stage
  double operator_seconds = 0;               ///< inside kda::* operators, forward and backward
  double traced_seconds = 0;  ///< of the steps in which operators were timed (they run slower)
  std::int64_t tokens = 0;    ///< read in `steps`

  double total_seconds() const;
  /// Several lines: a share per stage, tokens per second, the operator's share.
  std::string text() const;
};

/// Times `steps` steps stage by stage, then as many again with every KDA operator timed too. The
/// device is waited for at each border, so that a stage's work is counted to it. The first two
/// steps, which allocate and choose kernels, are left out.
class StepProfiler {
 public:
  /// Does nothing at all with `steps` = 0.
  StepProfiler(std::int64_t steps, c10::Device device);
  ~StepProfiler();
  StepProfiler(const StepProfiler&) = delete;
  StepProfiler& operator=(const StepProfiler&) = delete;

  void begin_step();
  /// What happened since the last border belongs to `stage`.
  void end_stage(Stage stage);
  /// Steps that a run must have for a report of `steps`.
  static constexpr std::int64_t steps_needed(std::int64_t steps) { return kWarmup + 2 * steps; }
  /// The report, once, when the last step that it needs has ended.
  std::optional<ProfileReport> end_step(std::int64_t tokens);

 private:
  using Clock = std::chrono::steady_clock;
  bool counting() const { return step_ > kWarmup && step_ <= kWarmup + 2 * steps_; }
  bool tracing() const { return step_ > kWarmup + steps_; }

  static constexpr std::int64_t kWarmup = 2;
  struct OperatorTimer;

  std::int64_t steps_;
  c10::Device device_;
  std::int64_t step_ = 0;
  Clock::time_point border_;
  ProfileReport report_;
  std::unique_ptr<OperatorTimer> timer_;
};

}  // namespace kda::train
