// Grouped value attention: gradients of shared query/key heads.
#pragma once

#include <vector>

#include "ref/matrix.h"

namespace kda::ref {

// Value heads h*G .. h*G + G-1 read query/key head h, so their gradients of it add up:
//   out[h] = sum_{g < G} per_value_head[h*G + g],  in ascending g.
// Entries are [T,K] matrices of one sequence; the result has size() / G of them.
template <typename Real>
std::vector<Matrix<Real>> fold_value_heads(const std::vector<Matrix<Real>>& per_value_head,
                                           std::int64_t G);

}  // namespace kda::ref
