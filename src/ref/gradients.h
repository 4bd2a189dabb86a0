// From gradients per value head back to the caller's tensors.
#pragma once

#include <functional>

#include "core/problem.h"
#include "ref/head.h"

namespace kda::ref {

// The backward of one value head, given d_o [T,V], d_final_state [K,V], and the checkpoints h_kv of
// the sequence ([blocks] of [K,V], empty when the caller gave none).
template <typename Real>
using HeadBackward = std::function<HeadGradients<Real>(
    const HeadInputs<Real>& head, const Matrix<Real>& d_o, const Matrix<Real>& d_final_state,
    const std::vector<Matrix<Real>>& h_kv)>;

// Runs `backward` on every sequence and value head; folds dq and dk over the group, undoes the
// normalisation, the gate and the sigmoid, and writes every requested output.
template <typename Real>
void run_backward(const ChunkBackwardParams& params, const core::Problem& problem,
                  const HeadBackward<Real>& backward);

}  // namespace kda::ref
