/// Floating-point operations of a node by formula; multiply-adds count as 2.
#pragma once

#include <cstdint>
#include <optional>

#include "inspect/graph.h"

namespace kda::inspect {

/// Products, convolutions, attention, the delta rule and experts, and their gradients; nothing for
/// all others: additions and activations are not counted. The formulas are those of model/cost.h,
/// so that the nodes of a forward pass add up to `flops_per_token` times the tokens.
std::optional<std::int64_t> flops_of(const Graph& graph, const Node& node);

}  // namespace kda::inspect
