// L1: the token recurrence, the definition of the operator, and its hand-written backward.
#pragma once

#include <functional>

#include "core/problem.h"
#include "kda/ops/recurrent.h"
#include "ref/head.h"

namespace kda::ref {

// One value head. `state` is S_0 on entry and S_T on return; o is [T,V] or null; after_token, where
// set, sees the state after every token.
template <typename Real>
void recurrent_head_forward(
    const HeadInputs<Real>& head, Matrix<Real>* state, Matrix<Real>* o,
    const std::function<void(std::int64_t t, const Matrix<Real>& state)>& after_token = nullptr);

template <typename Real>
HeadGradients<Real> recurrent_head_backward(const HeadInputs<Real>& head, const Matrix<Real>& d_o,
                                            const Matrix<Real>& d_final_state);

// The operator, with or without a state pool.
template <typename Real>
void recurrent_forward(const RecurrentForwardParams& params, const core::Problem& problem);

// The gradients of ops/chunk.h by the token recurrence; h_kv is not needed and ignored. Not part of
// any backend: the tests compare every chunked backward with it.
template <typename Real>
void recurrent_backward(const ChunkBackwardParams& params, const core::Problem& problem);

}  // namespace kda::ref
