// L2: the chunked form of the recurrence and its hand-written backward.
#pragma once

#include "core/problem.h"
#include "kda/ops/chunk.h"
#include "ref/head.h"

namespace kda::ref {

// One value head. `state` is S_0 on entry and S_T on return; o is [T,V]; block_states, where not
// null, receives the state at the start of every 64-token block.
template <typename Real>
void chunk_head_forward(const HeadInputs<Real>& head, std::int64_t C, Matrix<Real>* state,
                        Matrix<Real>* o, std::vector<Matrix<Real>>* block_states);

// h_kv: the block states of the forward, or empty: then they are recomputed.
template <typename Real>
HeadGradients<Real> chunk_head_backward(const HeadInputs<Real>& head, std::int64_t C,
                                        const Matrix<Real>& d_o, const Matrix<Real>& d_final_state,
                                        const std::vector<Matrix<Real>>& h_kv);

template <typename Real>
void chunk_forward(const ChunkForwardParams& params, const core::Problem& problem);
template <typename Real>
void chunk_backward(const ChunkBackwardParams& params, const core::Problem& problem);

}  // namespace kda::ref
