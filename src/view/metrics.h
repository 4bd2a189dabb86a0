/// The metrics of a run as curves. The file is read anew for each reply: the run may be going on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace kda::view {

/// Most points of one curve in a reply; longer ones are joined to means with extremes.
inline constexpr std::int64_t kMaxCurvePoints = 2000;

/// {"records": n, "note": null or why there is nothing to show, "series": [{"name": "step.loss",
/// "kind": "step", "points": n, "block": k, "x": [...], "y": [...], "low": [...] or null, "high":
/// [...] or null}, ...], "samples": [{"step", "prompt", "text"}, ...]}: every field of a record
/// that is a number becomes the curve `kind.field` over `step`; of texts the last 20. With `block`
/// k > 1 a point is the mean of k records, x the last of them. Error(kIo) naming the line for a
/// damaged file, and for one over 256 MB.
std::string metrics_json(const std::filesystem::path& path);

}  // namespace kda::view
