#include "train/profile.h"

#include <ATen/record_function.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <string_view>

#include "train/device.h"
#include "train/units.h"

namespace kda::train {
namespace {

double seconds_between(std::chrono::steady_clock::time_point a,
                       std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

/// What an operator call carries from its begin to its end.
struct CallStart final : at::ObserverContext {
  std::chrono::steady_clock::time_point begin;
};

// Callbacks are plain functions: what they share lives here while a profiler is alive.
struct TimerState {
  c10::Device device = c10::kCPU;
  std::atomic<std::int64_t> nanoseconds{0};
  std::atomic<int> depth{0};  ///< operators call each other: only the outermost counts
};
TimerState timer_state;  // NOLINT: one profiler at a time

bool is_kda(const at::RecordFunction& call) {
  return std::string_view(call.name()).starts_with("kda::");
}

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& call) {
  if (!is_kda(call) || timer_state.depth.fetch_add(1) > 0) return nullptr;
  synchronize(timer_state.device);
  auto start = std::make_unique<CallStart>();
  start->begin = std::chrono::steady_clock::now();
  return start;
}

void on_end(const at::RecordFunction& call, at::ObserverContext* context) {
  if (!is_kda(call)) return;
  timer_state.depth.fetch_sub(1);
  if (context == nullptr) return;
  synchronize(timer_state.device);
  const auto spent = std::chrono::steady_clock::now() - static_cast<CallStart*>(context)->begin;
  timer_state.nanoseconds += std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count();
}

std::string share_line(const char* name, double seconds, double total, std::int64_t steps) {
  char line[96];
  std::snprintf(line, sizeof line, "  %-10s %5.1f %%  %9.2f ms per step\n", name,
                total > 0 ? 100 * seconds / total : 0.0,
                steps > 0 ? 1e3 * seconds / static_cast<double>(steps) : 0.0);
  return line;
}

}  // namespace

const char* name_of(Stage stage) {
  constexpr std::array<const char*, kNumStages> kNames{"data", "forward", "backward", "optimizer",
                                                       "other"};
  return kNames[static_cast<std::size_t>(stage)];
}

double ProfileReport::total_seconds() const {
  double total = 0;
  for (const double s : seconds)
    total += s;
  return total;
}

std::string ProfileReport::text() const {
  const double total = total_seconds();
  std::string lines;
  for (std::size_t i = 0; i < kNumStages; ++i)
    lines += share_line(name_of(static_cast<Stage>(i)), seconds[i], total, steps);
  lines += share_line("all", total, total, steps);
  lines.pop_back();
  lines += ", " + short_count(static_cast<double>(tokens) / total) + " tok/s\n";
  char line[160];
  std::snprintf(line, sizeof line,
                "  KDA operator, forward and backward: %.1f %% of a step in which every call of it "
                "is waited for",
                traced_seconds > 0 ? 100 * operator_seconds / traced_seconds : 0.0);
  return lines + line;
}

/// Registered while operators are timed.
struct StepProfiler::OperatorTimer {
  explicit OperatorTimer(c10::Device device) {
    timer_state.device = device;
    timer_state.nanoseconds = 0;
    timer_state.depth = 0;
    handle = at::addGlobalCallback(
        at::RecordFunctionCallback(on_begin, on_end).scopes({at::RecordScope::FUNCTION}));
  }
  ~OperatorTimer() { at::removeCallback(handle); }
  OperatorTimer(const OperatorTimer&) = delete;
  OperatorTimer& operator=(const OperatorTimer&) = delete;

  at::CallbackHandle handle;
};

StepProfiler::StepProfiler(std::int64_t steps, c10::Device device)
    : steps_(steps), device_(device) {}
StepProfiler::~StepProfiler() = default;

void StepProfiler::begin_step() {
  if (steps_ == 0) return;
  ++step_;
  if (!counting()) return;
  if (tracing() && timer_ == nullptr) timer_ = std::make_unique<OperatorTimer>(device_);
  synchronize(device_);
  border_ = Clock::now();
}

void StepProfiler::end_stage(Stage stage) {
  if (steps_ == 0 || !counting()) return;
  synchronize(device_);
  const Clock::time_point now = Clock::now();
  const double spent = seconds_between(border_, now);
  border_ = now;
  if (tracing()) {
    report_.traced_seconds += spent;
  } else {
    report_.seconds[static_cast<std::size_t>(stage)] += spent;
  }
}

std::optional<ProfileReport> StepProfiler::end_step(std::int64_t tokens) {
  if (steps_ == 0 || !counting()) return std::nullopt;
  end_stage(Stage::kOther);
  if (!tracing()) {
    ++report_.steps;
    report_.tokens += tokens;
  }
  if (step_ < kWarmup + 2 * steps_) return std::nullopt;
  report_.operator_seconds = static_cast<double>(timer_state.nanoseconds.load()) * 1e-9;
  timer_.reset();
  return report_;
}

}  // namespace kda::train
