// The operators of the cpu backend, as the function table takes them.
#pragma once

#include <cstddef>

#include "core/problem.h"
#include "kda/backend.h"

namespace kda::cpu {

void gate_forward(const GateForwardParams&, const core::Problem&, const Context&);
void gate_backward(const GateBackwardParams&, const core::Problem&, const Context&);
void gate_cumsum_forward(const GateCumsumForwardParams&, const core::Problem&, const Context&);
void l2norm_forward(const L2NormForwardParams&, const core::Problem&, const Context&);
void l2norm_backward(const L2NormBackwardParams&, const core::Problem&, const Context&);
void chunk_forward(const ChunkForwardParams&, const core::Problem&, const Context&);
void chunk_backward(const ChunkBackwardParams&, const core::Problem&, const Context&);
void recurrent_forward(const RecurrentForwardParams&, const core::Problem&, const Context&);

std::size_t gate_backward_workspace(const GateBackwardParams&, const core::Problem&);
std::size_t chunk_forward_workspace(const ChunkForwardParams&, const core::Problem&);
std::size_t chunk_backward_workspace(const ChunkBackwardParams&, const core::Problem&);
std::size_t recurrent_forward_workspace(const RecurrentForwardParams&, const core::Problem&);

}  // namespace kda::cpu
