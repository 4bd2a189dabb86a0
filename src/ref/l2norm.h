// L2 normalisation: formulas of one row, and the two operators.
#pragma once

#include <cmath>

#include "core/problem.h"
#include "kda/ops/l2norm.h"
#include "ref/matrix.h"

namespace kda::ref {

template <typename Real>
Real l2norm_rstd(const Real* x, std::int64_t n, Real eps) {
  return Real(1) / std::sqrt(dot(x, x, n) + eps);
}

// dx = rstd (dy - (dy . y) y) with y = x rstd. The unrounded y is used: it is the exact gradient
// of the normalisation, rounding being taken as the identity.
template <typename Real>
void l2norm_backward_row(const Real* x, const Real* dy, Real* dx, std::int64_t n, Real eps) {
  const Real rstd = l2norm_rstd(x, n, eps);
  const Real projection = dot(dy, x, n) * rstd;
  for (std::int64_t i = 0; i < n; ++i)
    dx[i] = rstd * (dy[i] - projection * (x[i] * rstd));
}

template <typename Real>
void l2norm_forward(const L2NormForwardParams& params, const core::Problem& problem);
template <typename Real>
void l2norm_backward(const L2NormBackwardParams& params, const core::Problem& problem);

}  // namespace kda::ref
