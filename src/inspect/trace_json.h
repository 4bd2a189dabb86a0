/// The trace file (docs/inspection.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "inspect/graph.h"
#include "inspect/replay.h"
#include "io/json.h"
#include "model/config.h"

namespace kda::inspect {

inline constexpr int kTraceVersion = 1;

struct TraceAbout {
  io::Json run;     ///< program, checkpoint, device, ...
  io::Json tokens;  ///< [{"id", "text"}, ...]
  std::int64_t num_parameters = 0;
};

io::Json trace_json(const Graph& graph, const model::KDAConfig& config, const TraceAbout& about,
                    const std::optional<Validation>& validation);

/// "f32", "bf16", "i64", ...
std::string dtype_text(at::ScalarType type);

/// Sums over the nodes of a module and everything below it; stages are not counted.
struct ModuleSums {
  std::int64_t duration_ns = 0;
  std::int64_t flops = 0;
  std::int64_t parameters = 0;  ///< numbers in the weights that the nodes read
  std::int64_t nodes = 0;
};
ModuleSums sums_of(const Graph& graph, const std::string& path);

}  // namespace kda::inspect
