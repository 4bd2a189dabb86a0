// One model layer after another, timed alone on the shapes of a config.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kda/types.h"
#include "model/config.h"

namespace kda::bench {

struct Timing {
  double median_ms = 0;
  double min_ms = 0;
  double max_ms = 0;
};

/// Runs `work` until `seconds` have passed and at least 3 times, after one warm-up run.
Timing time_it(const std::function<void()>& work, double seconds);

struct Stage {
  std::string name;
  Timing forward;    ///< with the graph for backward
  Timing both;       ///< forward and backward
  double count = 0;  ///< calls per training step
};

std::vector<Stage> time_stages(const model::KDAConfig& config, DType compute, std::int64_t tokens,
                               double seconds);

}  // namespace kda::bench
