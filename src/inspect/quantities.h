/// What a person wants to see of the layers, by name, computed from a recorded forward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "inspect/graph.h"

namespace kda::inspect {

/// A quantity that a graph has: "model.layers.0.self_attn.decay".
struct Quantity {
  std::string name;
  std::string kind;               ///< "decay"
  std::string module;             ///< "model.layers.0.self_attn"
  std::vector<std::string> axes;  ///< a name for each dimension (docs/inspection.md)
  std::int64_t node = 0;          ///< the operation that it is computed from
};

/// Kinds: decay, beta, state_norm, state_singular_values, state, attention_map (KDA), attention
/// (MLA), load, router_weights (experts), source_weights (attention residuals); in the order of the
/// pass. Of calls over whole sequences only, not of decode steps.
std::vector<Quantity> quantities_of(const Graph& graph);

/// Its value, f64 on the host (load: i64). Maps and attention of more than `kMaxMapTokens` tokens
/// throw kUnsupported.
at::Tensor compute(const Graph& graph, const Quantity& quantity);

/// [H,T,T] of doubles: 128 MiB a head.
inline constexpr std::int64_t kMaxMapTokens = 4096;

}  // namespace kda::inspect
