// Which nodes stay, and what they are called.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "inspect/recorder.h"

namespace kda::inspect {
namespace {

void renumber(Graph& graph, const std::vector<std::int64_t>& place) {
  const auto moved = [&](std::int64_t& index) {
    if (index >= 0) index = place[static_cast<std::size_t>(index)];
  };
  for (Node& node : graph.nodes) {
    for (NodeInput& input : node.inputs) {
      moved(input.node);
      for (std::int64_t& writer : input.writers)
        moved(writer);
    }
    moved(node.stage_of);
    moved(node.gradient_of);
    for (std::int64_t& stage : node.stages)
      moved(stage);
  }
  for (Module& module : graph.modules) {
    for (OutputRef& output : module.outputs)
      moved(output.node);
  }
  for (Result& result : graph.results)
    moved(result.from.node);
}

}  // namespace

void prune(Graph& graph) {
  const std::size_t count = graph.nodes.size();
  std::vector<bool> used(count, false);
  for (const Result& result : graph.results)
    used[static_cast<std::size_t>(result.from.node)] = true;
  // Children come later, so one way back is enough.
  for (std::size_t i = count; i-- > 0;) {
    const Node& node = graph.nodes[i];
    const bool done_inside = node.kind != NodeKind::kConstant && !node.module.empty();
    used[i] = used[i] || done_inside || !node.changed.empty() || node.kind == NodeKind::kInput ||
              node.kind == NodeKind::kGradient || graph.modules.empty();
    if (!used[i]) continue;
    for (const std::int64_t parent : graph.parents(node))
      used[static_cast<std::size_t>(parent)] = true;
  }
  std::vector<std::int64_t> place(count + 1, 0);
  std::vector<Node> kept;
  for (std::size_t i = 0; i < count; ++i) {
    place[i] = static_cast<std::int64_t>(kept.size());
    if (used[i]) kept.push_back(std::move(graph.nodes[i]));
  }
  place[count] = static_cast<std::int64_t>(kept.size());
  graph.nodes = std::move(kept);
  for (Phase& phase : graph.phases) {
    phase.first_node = place[static_cast<std::size_t>(phase.first_node)];
    phase.last_node = place[static_cast<std::size_t>(phase.last_node)];
  }
  renumber(graph, place);
}

void label_nodes(Graph& graph) {
  struct Place {
    std::int64_t nth, ordinal, passes;
  };
  using Site = std::tuple<std::string, std::string, std::int64_t>;
  std::map<Site, Place> places;
  std::map<std::string, std::int64_t> of_function;
  std::int64_t ordinals = 0;
  std::map<std::pair<std::string, std::string>, std::int64_t> in_phase;
  std::int64_t phase = -1;
  for (Node& node : graph.nodes) {
    if (node.phase != phase) {
      in_phase.clear();
      phase = node.phase;
    }
    const std::int64_t occurrence = in_phase[{node.module, node.function}]++;
    const auto [found, is_new] =
        places.try_emplace({node.module, node.function, occurrence}, Place{0, 0, 0});
    Place& place = found->second;
    if (is_new) {
      const bool counts = node.kind != NodeKind::kInput && node.kind != NodeKind::kConstant;
      place.nth = ++of_function[node.function];
      place.ordinal = counts ? ++ordinals : 0;
    }
    node.nth = place.nth;
    node.ordinal = place.ordinal;
    node.pass = ++place.passes;
    node.label = node.function + "_" + std::to_string(node.nth) + "_" +
                 std::to_string(node.ordinal) + ":" + std::to_string(node.pass);
  }
}

}  // namespace kda::inspect
