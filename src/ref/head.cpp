#include "ref/head.h"

#include "ref/element.h"
#include "ref/gate.h"
#include "ref/l2norm.h"

namespace kda::ref {

template <typename Real>
Matrix<Real> read_rows(const ConstTensorView& view, const core::Sequence& sequence,
                       std::int64_t hv) {
  Matrix<Real> rows(sequence.length, view.shape[3]);
  for (std::int64_t t = 0; t < rows.rows(); ++t) {
    for (std::int64_t i = 0; i < rows.cols(); ++i) {
      rows(t, i) = load<Real>(view, sequence.row, sequence.begin + t, hv, i);
    }
  }
  return rows;
}

template <typename Real>
void write_rows(const Matrix<Real>& rows, const TensorView& view, const core::Sequence& sequence,
                std::int64_t hv) {
  for (std::int64_t t = 0; t < rows.rows(); ++t) {
    for (std::int64_t i = 0; i < rows.cols(); ++i) {
      store(view, rows(t, i), sequence.row, sequence.begin + t, hv, i);
    }
  }
}

template <typename Real>
Matrix<Real> read_state(const ConstTensorView& view, std::int64_t index, std::int64_t hv) {
  Matrix<Real> state(view.shape[2], view.shape[3]);
  for (std::int64_t k = 0; k < state.rows(); ++k) {
    for (std::int64_t v = 0; v < state.cols(); ++v)
      state(k, v) = load<Real>(view, index, hv, k, v);
  }
  return state;
}

template <typename Real>
void write_state(const Matrix<Real>& state, const TensorView& view, std::int64_t index,
                 std::int64_t hv) {
  for (std::int64_t k = 0; k < state.rows(); ++k) {
    for (std::int64_t v = 0; v < state.cols(); ++v)
      store(view, state(k, v), index, hv, k, v);
  }
}

namespace {

template <typename Real>
void normalise_rows(Matrix<Real>* x, DType io) {
  for (std::int64_t t = 0; t < x->rows(); ++t) {
    const Real rstd = l2norm_rstd(x->row(t), x->cols(), static_cast<Real>(kL2NormEps));
    for (std::int64_t i = 0; i < x->cols(); ++i) {
      (*x)(t, i) = rounded_to(io, (*x)(t, i) * rstd);  // the rest sees what would be stored
    }
  }
}

}  // namespace

template <typename Real>
HeadInputs<Real> read_head(const OperatorInputs& in, const ConstTensorView& beta_v,
                           const core::Problem& problem, std::int64_t n, std::int64_t hv) {
  const core::Sequence sequence = problem.sequence(n);
  const std::int64_t h = hv / problem.dims.G();
  HeadInputs<Real> head;
  head.scale = static_cast<Real>(problem.scale);
  head.q = read_rows<Real>(in.q, sequence, h);
  head.k = read_rows<Real>(in.k, sequence, h);
  head.v = read_rows<Real>(in.v, sequence, hv);
  if (in.qk_l2norm) {
    normalise_rows(&head.q, problem.io);
    normalise_rows(&head.k, problem.io);
  }

  head.g_ln = read_rows<Real>(problem.raw_gate ? in.g_raw : in.g_ln, sequence, hv);
  if (problem.raw_gate) {
    for (std::int64_t k = 0; k < head.K(); ++k) {
      const GateChannel<Real> gate = gate_channel<Real>(in.gate, hv, k);
      for (std::int64_t t = 0; t < head.T(); ++t)
        head.g_ln(t, k) = gate.value(head.g_ln(t, k));
    }
  }

  if (beta_v.defined()) {
    head.beta = read_rows<Real>(beta_v, sequence, hv);
  } else {
    const ConstTensorView& view = problem.beta_is_logit ? in.beta_logit : in.beta;
    head.beta = Matrix<Real>(head.T(), 1);
    for (std::int64_t t = 0; t < head.T(); ++t) {
      const Real x = load<Real>(view, sequence.row, sequence.begin + t, hv);
      head.beta(t, 0) = problem.beta_is_logit ? static_cast<Real>(in.beta_max) * sigmoid(x) : x;
    }
  }

  head.state0 = in.initial_state_kv.defined() ? read_state<Real>(in.initial_state_kv, n, hv)
                                              : Matrix<Real>(problem.dims.K, problem.dims.V);
  return head;
}

#define KDA_REF_INSTANTIATE(Real)                                                               \
  template HeadInputs<Real> read_head(const OperatorInputs&, const ConstTensorView&,            \
                                      const core::Problem&, std::int64_t, std::int64_t);        \
  template Matrix<Real> read_rows(const ConstTensorView&, const core::Sequence&, std::int64_t); \
  template void write_rows(const Matrix<Real>&, const TensorView&, const core::Sequence&,       \
                           std::int64_t);                                                       \
  template Matrix<Real> read_state(const ConstTensorView&, std::int64_t, std::int64_t);         \
  template void write_state(const Matrix<Real>&, const TensorView&, std::int64_t, std::int64_t);
KDA_REF_INSTANTIATE(float)
KDA_REF_INSTANTIATE(double)
#undef KDA_REF_INSTANTIATE

}  // namespace kda::ref
