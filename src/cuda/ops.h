// The functions of the backend table.
#pragma once

#include "core/problem.h"
#include "kda/backend.h"

namespace kda::cuda {

// Throws kOutOfMemory when the context's workspace is smaller than `bytes`.
void check_workspace(std::size_t bytes, const Context& context);

void gate_forward(const GateForwardParams& params, const core::Problem& problem,
                  const Context& context);
void gate_backward(const GateBackwardParams& params, const core::Problem& problem,
                   const Context& context);
void gate_cumsum_forward(const GateCumsumForwardParams& params, const core::Problem& problem,
                         const Context& context);
void l2norm_forward(const L2NormForwardParams& params, const core::Problem& problem,
                    const Context& context);
void l2norm_backward(const L2NormBackwardParams& params, const core::Problem& problem,
                     const Context& context);
void chunk_forward(const ChunkForwardParams& params, const core::Problem& problem,
                   const Context& context);
void chunk_backward(const ChunkBackwardParams& params, const core::Problem& problem,
                    const Context& context);
std::size_t recurrent_forward_workspace(const RecurrentForwardParams& params,
                                        const core::Problem& problem);
void recurrent_forward(const RecurrentForwardParams& params, const core::Problem& problem,
                       const Context& context);

}  // namespace kda::cuda
