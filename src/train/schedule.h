/// The learning rate of a run: linear warm-up, then one of two ways down to a floor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kda::train {

enum class ScheduleKind : std::uint8_t {
  kCosine,  ///< a half cosine from the end of the warm-up to the end of the run
  kWsd,     ///< warm-up, stable, decay: the peak is held until the last `decay_steps`
};

const char* name_of(ScheduleKind kind);  ///< "cosine", "wsd"
/// Throws kInvalidArgument naming --schedule.
ScheduleKind schedule_from(const std::string& name);

/// Where a run was resumed with another length: from here on the rate goes down from what it was.
struct LrAnchor {
  std::int64_t step = 0;
  double lr = 0;
  bool operator==(const LrAnchor&) const = default;
};

/// Math, for the optimizer step s = 0 .. total_steps - 1 about to be taken, W = warmup_steps, D =
/// decay_steps, f = floor_ratio and c(x) = (1 + cos(pi x)) / 2:
///   s < W:            base * (s + 1) / W
///   cosine:           base * (f + (1 - f) * c((s - W) / (total - W)))
///   wsd, s < total-D: base
///   wsd:              base * (f + (1 - f) * c((s - (total - D)) / D))
/// At s >= total_steps it stays at base * f. Sources: Kimi K3 report (arXiv 2607.24653) section
/// 3.2 for the cosine; Kimi K2 report (arXiv 2507.20534) section 2.5 for WSD with a cosine decay.
///
/// With an anchor (r, lr_r), for s >= r the same with lr_r in the place of base, r in that of W and
/// an absolute floor: the rate never rises above what it was when the length changed, and reaches
/// the floor at the new end.
struct Schedule {
  double base_lr = 3e-4;
  std::int64_t warmup_steps = 0;  ///< in [0, total_steps]
  std::int64_t total_steps = 0;   ///< > 0
  double floor_ratio = 0.1;       ///< in [0, 1]
  ScheduleKind kind = ScheduleKind::kCosine;
  std::int64_t decay_steps = 0;  ///< wsd only, in [0, total_steps - warmup_steps]
  std::optional<LrAnchor> anchor = std::nullopt;

  /// Throws kInvalidArgument when a field is outside its range.
  void check() const;

  double lr_at(std::int64_t step) const;
};

/// The schedule `next` of a run that has taken `step` steps under `before`: anchored where the
/// rate would otherwise jump. Inside the warm-up and on the plateau of WSD nothing jumps.
Schedule continued_schedule(const Schedule& before, Schedule next, std::int64_t step);

}  // namespace kda::train
