// One value head of one sequence, as the algorithms of this folder see it: plain matrices after
// every input transform (normalisation, gate, sigmoid), with no batch, group or dtype left.
#pragma once

#include "core/problem.h"
#include "ref/matrix.h"

namespace kda::ref {

template <typename Real>
struct HeadInputs {
  Matrix<Real> q;       // [T,K]
  Matrix<Real> k;       // [T,K]
  Matrix<Real> v;       // [T,V]
  Matrix<Real> g_ln;    // [T,K]
  Matrix<Real> beta;    // [T,1], or [T,V] where the step size is per value channel
  Matrix<Real> state0;  // [K,V]
  Real scale = 0;

  std::int64_t T() const { return q.rows(); }
  std::int64_t K() const { return q.cols(); }
  std::int64_t V() const { return v.cols(); }
};

// Gradients of the above, before the input transforms are undone.
template <typename Real>
struct HeadGradients {
  Matrix<Real> dq;       // [T,K]
  Matrix<Real> dk;       // [T,K]
  Matrix<Real> dv;       // [T,V]
  Matrix<Real> dg_ln;    // [T,K]
  Matrix<Real> dbeta;    // [T,1]
  Matrix<Real> dstate0;  // [K,V]
};

// The inputs of (sequence n, value head hv); `beta_v` may be undefined.
template <typename Real>
HeadInputs<Real> read_head(const OperatorInputs& in, const ConstTensorView& beta_v,
                           const core::Problem& problem, std::int64_t n, std::int64_t hv);

// Rows of sequence n, head hv of a [B,T,HV,X] tensor.
template <typename Real>
Matrix<Real> read_rows(const ConstTensorView& view, const core::Sequence& sequence,
                       std::int64_t hv);
template <typename Real>
void write_rows(const Matrix<Real>& rows, const TensorView& view, const core::Sequence& sequence,
                std::int64_t hv);

// Matrix [index, hv] of a [*,HV,K,V] tensor.
template <typename Real>
Matrix<Real> read_state(const ConstTensorView& view, std::int64_t index, std::int64_t hv);
template <typename Real>
void write_state(const Matrix<Real>& state, const TensorView& view, std::int64_t index,
                 std::int64_t hv);

}  // namespace kda::ref
