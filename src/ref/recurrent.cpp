#include "ref/recurrent.h"

#include <algorithm>
#include <cmath>

#include "ref/element.h"
#include "ref/gradients.h"

namespace kda::ref {
namespace {

// Multiplies row d of a [K,V] matrix by exp(g_d). Weak decays go through expm1: exp(g) itself would
// be rounded to one ulp of 1, the same way at every token, and a long memory would drift.
template <typename Real>
void apply_decay(Matrix<Real>* state, const Real* g_ln) {
  for (std::int64_t d = 0; d < state->rows(); ++d) {
    Real* row = state->row(d);
    if (g_ln[d] > Real(-0.5)) {
      const Real loss = std::expm1(g_ln[d]);
      for (std::int64_t j = 0; j < state->cols(); ++j)
        row[j] += loss * row[j];
    } else {
      const Real factor = std::exp(g_ln[d]);
      for (std::int64_t j = 0; j < state->cols(); ++j)
        row[j] *= factor;
    }
  }
}

// S^T x for S [K,V], x [K].
template <typename Real>
std::vector<Real> transposed_product(const Matrix<Real>& state, const Real* x) {
  std::vector<Real> out(static_cast<std::size_t>(state.cols()), Real(0));
  for (std::int64_t d = 0; d < state.rows(); ++d) {
    add_scaled(out.data(), x[d], state.row(d), state.cols());
  }
  return out;
}

// S += x y^T
template <typename Real>
void add_outer(Matrix<Real>* state, const Real* x, const Real* y, Real factor) {
  for (std::int64_t d = 0; d < state->rows(); ++d) {
    add_scaled(state->row(d), factor * x[d], y, state->cols());
  }
}

// r = v_t - S-bar^T k_t, where `decayed` is S-bar.
template <typename Real>
std::vector<Real> residual(const HeadInputs<Real>& head, const Matrix<Real>& decayed,
                           std::int64_t t) {
  std::vector<Real> r = transposed_product(decayed, head.k.row(t));
  for (std::int64_t j = 0; j < head.V(); ++j) {
    const auto i = static_cast<std::size_t>(j);
    r[i] = head.v(t, j) - r[i];
  }
  return r;
}

// S_{t-1} -> S_t:  S-bar = diag(e^g) S;  S = S-bar + k (beta (.) r)^T.
template <typename Real>
void step(const HeadInputs<Real>& head, std::int64_t t, Matrix<Real>* state) {
  apply_decay(state, head.g_ln.row(t));
  std::vector<Real> update = residual(head, *state, t);
  for (std::size_t j = 0; j < update.size(); ++j) {
    update[j] *= head.beta(t, head.beta.cols() == 1 ? 0 : static_cast<std::int64_t>(j));
  }
  add_outer(state, head.k.row(t), update.data(), Real(1));
}

}  // namespace

template <typename Real>
void recurrent_head_forward(
    const HeadInputs<Real>& head, Matrix<Real>* state, Matrix<Real>* o,
    const std::function<void(std::int64_t, const Matrix<Real>&)>& after_token) {
  for (std::int64_t t = 0; t < head.T(); ++t) {
    step(head, t, state);
    if (o != nullptr) {
      const std::vector<Real> out = transposed_product(*state, head.q.row(t));
      for (std::int64_t j = 0; j < head.V(); ++j) {
        (*o)(t, j) = head.scale * out[static_cast<std::size_t>(j)];  // o_t = s S_t^T q_t
      }
    }
    if (after_token) after_token(t, *state);
  }
}

template <typename Real>
HeadGradients<Real> recurrent_head_backward(const HeadInputs<Real>& head, const Matrix<Real>& d_o,
                                            const Matrix<Real>& d_final_state) {
  const std::int64_t T = head.T();
  const std::int64_t K = head.K();
  const std::int64_t V = head.V();
  constexpr std::int64_t kSegment = 64;  // bounds the states held: T / 64 + 64

  std::vector<Matrix<Real>> segment_starts;
  Matrix<Real> state = head.state0;
  for (std::int64_t t = 0; t < T; ++t) {
    if (t % kSegment == 0) segment_starts.push_back(state);
    step(head, t, &state);
  }

  HeadGradients<Real> grad{Matrix<Real>(T, K), Matrix<Real>(T, K), Matrix<Real>(T, V),
                           Matrix<Real>(T, K), Matrix<Real>(T, 1), d_final_state};
  Matrix<Real>& ds = grad.dstate0;  // dS, carried from T down to 0
  for (std::int64_t segment = static_cast<std::int64_t>(segment_starts.size()) - 1; segment >= 0;
       --segment) {
    const std::int64_t first = segment * kSegment;
    const std::int64_t last = std::min(T, first + kSegment);
    // states[i] = S after token first + i - 1.
    std::vector<Matrix<Real>> states = {segment_starts[static_cast<std::size_t>(segment)]};
    for (std::int64_t t = first; t < last; ++t) {
      states.push_back(states.back());
      step(head, t, &states.back());
    }
    for (std::int64_t t = last - 1; t >= first; --t) {
      const Matrix<Real>& after = states[static_cast<std::size_t>(t - first + 1)];
      Matrix<Real> decayed = states[static_cast<std::size_t>(t - first)];
      apply_decay(&decayed, head.g_ln.row(t));
      const std::vector<Real> r = residual(head, decayed, t);
      const Real* k = head.k.row(t);
      const Real* go = d_o.row(t);
      const Real beta = head.beta(t, 0);

      // o_t = s S_t^T q_t:  dq = s S_t do,  dS += s q do^T
      for (std::int64_t d = 0; d < K; ++d) {
        grad.dq(t, d) = head.scale * dot(after.row(d), go, V);
      }
      add_outer(&ds, head.q.row(t), go, head.scale);

      // S_t = S-bar + beta k r^T, r = v - S-bar^T k:
      // dr = beta dS^T k,  dbeta = k^T dS r,  dv = dr,  dk = beta dS r - S-bar dr
      std::vector<Real> dr = transposed_product(ds, k);
      grad.dbeta(t, 0) = dot(dr.data(), r.data(), V);
      for (Real& x : dr)
        x *= beta;
      for (std::int64_t j = 0; j < V; ++j)
        grad.dv(t, j) = dr[static_cast<std::size_t>(j)];
      for (std::int64_t d = 0; d < K; ++d) {
        grad.dk(t, d) = beta * dot(ds.row(d), r.data(), V) - dot(decayed.row(d), dr.data(), V);
      }

      // dS-bar = dS - k dr^T,  dg = sum_V dS-bar (.) S-bar,  dS_{t-1} = e^g (.) dS-bar
      add_outer(&ds, k, dr.data(), Real(-1));
      for (std::int64_t d = 0; d < K; ++d) {
        grad.dg_ln(t, d) = dot(ds.row(d), decayed.row(d), V);
      }
      apply_decay(&ds, head.g_ln.row(t));
    }
  }
  return grad;
}

namespace {

// The pool's view of one row: where it starts and where each token's state goes; -1 = nowhere.
struct RowSlots {
  std::int64_t start = -1;
  std::vector<std::int64_t> after_token;
};

RowSlots row_slots(const StatePool& pool, std::int64_t n, std::int64_t length) {
  RowSlots row;
  row.after_token.assign(static_cast<std::size_t>(length), -1);
  if (length == 0) return row;
  if (pool.slots.rank == 1) {
    row.start = load_index(pool.slots, n);
    row.after_token.back() = row.start;
    return row;
  }
  const std::int64_t accepted =
      pool.num_accepted.defined() ? load_index(pool.num_accepted, n) : std::int64_t{1};
  if (accepted > 0) row.start = load_index(pool.slots, n, accepted - 1);
  for (std::int64_t t = 0; t < length; ++t) {
    row.after_token[static_cast<std::size_t>(t)] = load_index(pool.slots, n, t);
  }
  return row;
}

// o = weight o / sqrt(mean o^2 + eps) sigmoid(gate), row by row.
template <typename Real>
void apply_output_norm(const OutputNorm& norm, const core::Sequence& sequence, std::int64_t hv,
                       Matrix<Real>* o) {
  Matrix<Real> gate;
  if (norm.gate.defined()) gate = read_rows<Real>(norm.gate, sequence, hv);
  for (std::int64_t t = 0; t < o->rows(); ++t) {
    Real* row = o->row(t);
    const Real mean = dot(row, row, o->cols()) / static_cast<Real>(o->cols());
    const Real rstd = Real(1) / std::sqrt(mean + static_cast<Real>(norm.eps));
    for (std::int64_t j = 0; j < o->cols(); ++j) {
      row[j] *= rstd * load<Real>(norm.weight, j);
      if (norm.gate.defined()) row[j] /= Real(1) + std::exp(-gate(t, j));
    }
  }
}

}  // namespace

template <typename Real>
void recurrent_forward(const RecurrentForwardParams& params, const core::Problem& problem) {
  const Dims& d = problem.dims;
  const bool pooled = params.pool.pool_kv.defined();
  for (std::int64_t n = 0; n < d.N; ++n) {
    const core::Sequence sequence = problem.sequence(n);
    const RowSlots slots = pooled ? row_slots(params.pool, n, sequence.length) : RowSlots{};
    for (std::int64_t hv = 0; hv < d.HV; ++hv) {
      const HeadInputs<Real> head = read_head<Real>(params.in, params.beta_v, problem, n, hv);
      Matrix<Real> state = head.state0;
      if (pooled && slots.start >= 0) {
        state = read_state<Real>(params.pool.pool_kv, slots.start, hv);
      }
      Matrix<Real> o(sequence.length, d.V);
      recurrent_head_forward<Real>(head, &state, &o, [&](std::int64_t t, const Matrix<Real>& s) {
        if (!pooled) return;
        const std::int64_t slot = slots.after_token[static_cast<std::size_t>(t)];
        if (slot >= 0) write_state(s, params.pool.pool_kv, slot, hv);
      });
      if (params.out_norm.weight.defined()) {
        apply_output_norm(params.out_norm, sequence, hv, &o);
      }
      write_rows(o, params.o, sequence, hv);
      if (params.final_state_kv.defined()) write_state(state, params.final_state_kv, n, hv);
    }
  }
}

template <typename Real>
void recurrent_backward(const ChunkBackwardParams& params, const core::Problem& problem) {
  run_backward<Real>(params, problem,
                     [](const HeadInputs<Real>& head, const Matrix<Real>& d_o,
                        const Matrix<Real>& d_final_state, const std::vector<Matrix<Real>>&) {
                       return recurrent_head_backward(head, d_o, d_final_state);
                     });
}

#define KDA_REF_INSTANTIATE(Real)                                                             \
  template void recurrent_head_forward<Real>(                                                 \
      const HeadInputs<Real>&, Matrix<Real>*, Matrix<Real>*,                                  \
      const std::function<void(std::int64_t, const Matrix<Real>&)>&);                         \
  template HeadGradients<Real> recurrent_head_backward<Real>(                                 \
      const HeadInputs<Real>&, const Matrix<Real>&, const Matrix<Real>&);                     \
  template void recurrent_forward<Real>(const RecurrentForwardParams&, const core::Problem&); \
  template void recurrent_backward<Real>(const ChunkBackwardParams&, const core::Problem&);
KDA_REF_INSTANTIATE(float)
KDA_REF_INSTANTIATE(double)
#undef KDA_REF_INSTANTIATE

}  // namespace kda::ref
