/// A trace file (docs/inspection.md), checked once and then cut into replies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace kda::view {

/// Most nodes of one graph reply: a page cannot draw more.
inline constexpr std::size_t kMaxGraphNodes = 20'000;

class Trace {
 public:
  /// Error(kIo) naming the file and the first field that is missing or wrong; also for files over
  /// 256 MB, another format or a higher version.
  explicit Trace(const std::filesystem::path& path);
  /// The same for text in memory; `what` names it in errors.
  Trace(std::string_view text, std::string_view what);

  /// Everything but the nodes: run, model, tokens, phases, modules, results, validation, totals.
  std::string overview_json() const;

  /// Nodes of one phase in columns, parents as indices into them (those of other phases left out):
  /// {"phase", "label": [...], "function": [...], "kind": [...], "module": [...],
  /// "parents": [[...]], "stage_of": [index or -1], "shape": [...], "dtype": [...],
  /// "duration_ns": [...], "flops": [...], "reduced": null or what was left out}.
  /// Error(kInvalidArgument) for another phase.
  std::string graph_json(std::int64_t phase) const;

  /// One node as it stands in the file; "" when there is no such label.
  std::string node_json(std::string_view label) const;

  std::size_t num_nodes() const { return index_of_.size(); }

 private:
  void check(const std::string& what);

  io::SortedJson document_;
  std::map<std::string, std::size_t, std::less<>> index_of_;
};

}  // namespace kda::view
