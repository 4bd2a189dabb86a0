// The chunked form, chunk by chunk. Notation for a chunk of L <= C rows, i and j counted from its
// first row, Gc_i = log2(e) * (g_0 + ... + g_i):
//
//   kt_i = k_i 2^{Gc_i}      qt_i = q_i 2^{Gc_i}      kh_i = k_i 2^{Gc_{L-1} - Gc_i}
//   Lo_ij = b_i sum_d k_id k_jd 2^{Gc_id - Gc_jd}  (i > j)
//   N_ij  =     sum_d q_id k_jd 2^{Gc_id - Gc_jd}  (i >= j)
//   U = (I + Lo)^{-1} diag(b) (v - kt S)
//   o = s (qt S + N U)          S' = diag(2^{Gc_{L-1}}) S + kh^T U
//
// Every power of two is taken of a sum of decays over a range of tokens, never of a difference of
// two prefix sums: no exponent is positive and no digit cancels, whatever the gate. That is O(C^2
// K) exponentials per chunk; a production backend cannot afford it, an oracle can.
#include "ref/chunk.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ref/gradients.h"

namespace kda::ref {
namespace {

// One chunk's inputs and products, formulas above.
template <typename Real>
struct Chunk {
  const HeadInputs<Real>& head;
  std::int64_t first;  // token of row 0
  std::int64_t L;
  Matrix<Real> from_start;  // [L,K] 2^{Gc_i}
  Matrix<Real> kt;          // [L,K]
  Matrix<Real> lo;          // [L,L] strictly lower
  Matrix<Real> n;           // [L,L] lower with diagonal

  const Real* q(std::int64_t i) const { return head.q.row(first + i); }
  const Real* k(std::int64_t i) const { return head.k.row(first + i); }
  const Real* v(std::int64_t i) const { return head.v.row(first + i); }
  const Real* g(std::int64_t i) const { return head.g_ln.row(first + i); }
  Real b(std::int64_t i) const { return head.beta(first + i, 0); }
};

// [rows,K], row i: 2^(log2e * (g_{i+1} + ... + g_{rows-1})), the decay from row i to the last row.
template <typename Real>
Matrix<Real> decay_to_end(const Chunk<Real>& c, std::int64_t rows) {
  const std::int64_t K = c.head.K();
  Matrix<Real> decay(rows, K);
  std::vector<Real> sum(static_cast<std::size_t>(K), Real(0));
  for (std::int64_t i = rows - 1; i >= 0; --i) {
    for (std::int64_t d = 0; d < K; ++d) {
      Real& s = sum[static_cast<std::size_t>(d)];
      decay(i, d) = std::exp2(s);
      s += std::numbers::log2e_v<Real> * c.g(i)[d];
    }
  }
  return decay;
}

// [L,K], row i: 2^(log2e * (g_{j+1} + ... + g_i)) for i >= j, the decay from row j to row i; rows
// above j stay 0 and must not be used.
template <typename Real>
Matrix<Real> decay_from_row(const Chunk<Real>& c, std::int64_t j) {
  const std::int64_t K = c.head.K();
  Matrix<Real> decay(c.L, K);
  std::vector<Real> sum(static_cast<std::size_t>(K), Real(0));
  for (std::int64_t i = j; i < c.L; ++i) {
    for (std::int64_t d = 0; d < K; ++d) {
      Real& s = sum[static_cast<std::size_t>(d)];
      if (i > j) s += std::numbers::log2e_v<Real> * c.g(i)[d];
      decay(i, d) = std::exp2(s);
    }
  }
  return decay;
}

template <typename Real>
Chunk<Real> make_chunk(const HeadInputs<Real>& head, std::int64_t first, std::int64_t C) {
  const std::int64_t K = head.K();
  const std::int64_t L = std::min(C, head.T() - first);
  Chunk<Real> c{head,
                first,
                L,
                Matrix<Real>(L, K),
                Matrix<Real>(L, K),
                Matrix<Real>(L, L),
                Matrix<Real>(L, L)};
  std::vector<Real> sum(static_cast<std::size_t>(K), Real(0));
  for (std::int64_t i = 0; i < L; ++i) {
    for (std::int64_t d = 0; d < K; ++d) {
      Real& s = sum[static_cast<std::size_t>(d)];
      s += std::numbers::log2e_v<Real> * c.g(i)[d];
      c.from_start(i, d) = std::exp2(s);
      c.kt(i, d) = c.k(i)[d] * c.from_start(i, d);
    }
  }
  for (std::int64_t j = 0; j < L; ++j) {
    const Matrix<Real> decay = decay_from_row(c, j);
    for (std::int64_t i = j; i < L; ++i) {
      Real kk = 0;
      Real qk = 0;
      for (std::int64_t d = 0; d < K; ++d) {
        const Real kj = c.k(j)[d] * decay(i, d);
        kk += c.k(i)[d] * kj;
        qk += c.q(i)[d] * kj;
      }
      if (i > j) c.lo(i, j) = c.b(i) * kk;
      c.n(i, j) = qk;
    }
  }
  return c;
}

// v - kt S  [L,V]
template <typename Real>
Matrix<Real> unexplained_values(const Chunk<Real>& c, const Matrix<Real>& state) {
  const std::int64_t V = c.head.V();
  Matrix<Real> y(c.L, V);
  for (std::int64_t i = 0; i < c.L; ++i) {
    add_scaled(y.row(i), Real(1), c.v(i), V);
    for (std::int64_t d = 0; d < c.head.K(); ++d) {
      add_scaled(y.row(i), -c.kt(i, d), state.row(d), V);
    }
  }
  return y;
}

// U = (I + Lo)^{-1} diag(b) y by forward substitution.
template <typename Real>
Matrix<Real> solve_lower(const Chunk<Real>& c, const Matrix<Real>& y) {
  Matrix<Real> u(c.L, y.cols());
  for (std::int64_t i = 0; i < c.L; ++i) {
    add_scaled(u.row(i), c.b(i), y.row(i), y.cols());
    for (std::int64_t j = 0; j < i; ++j)
      add_scaled(u.row(i), -c.lo(i, j), u.row(j), y.cols());
  }
  return u;
}

// X = (I + Lo)^{-T} dU by backward substitution.
template <typename Real>
Matrix<Real> solve_lower_transposed(const Chunk<Real>& c, const Matrix<Real>& du) {
  Matrix<Real> x = du;
  for (std::int64_t i = c.L - 1; i >= 0; --i) {
    for (std::int64_t j = i + 1; j < c.L; ++j) {
      add_scaled(x.row(i), -c.lo(j, i), x.row(j), x.cols());
    }
  }
  return x;
}

// The state after the first `rows` rows: diag(2^{Gc_{rows-1}}) S + kh^T U. U's rows below `rows` do
// not depend on later ones, so any prefix of the chunk can be asked for.
template <typename Real>
Matrix<Real> state_after(const Chunk<Real>& c, const Matrix<Real>& state, const Matrix<Real>& u,
                         std::int64_t rows) {
  const std::int64_t V = c.head.V();
  Matrix<Real> next(c.head.K(), V);
  const Matrix<Real> to_end = decay_to_end(c, rows);
  for (std::int64_t d = 0; d < c.head.K(); ++d) {
    add_scaled(next.row(d), c.from_start(rows - 1, d), state.row(d), V);
    for (std::int64_t i = 0; i < rows; ++i) {
      add_scaled(next.row(d), c.k(i)[d] * to_end(i, d), u.row(i), V);
    }
  }
  return next;
}

// o = s (qt S + N U) for the rows of this chunk.
template <typename Real>
void write_output(const Chunk<Real>& c, const Matrix<Real>& state, const Matrix<Real>& u,
                  Matrix<Real>* o) {
  const std::int64_t V = c.head.V();
  const Real s = c.head.scale;
  for (std::int64_t i = 0; i < c.L; ++i) {
    Real* row = o->row(c.first + i);
    for (std::int64_t d = 0; d < c.head.K(); ++d) {
      add_scaled(row, s * c.q(i)[d] * c.from_start(i, d), state.row(d), V);
    }
    for (std::int64_t j = 0; j <= i; ++j)
      add_scaled(row, s * c.n(i, j), u.row(j), V);
  }
}

// Gradients of one chunk from S (its start), D (dS at its end): adds to `grad`, turns `ds` from D
// into the gradient of S.
template <typename Real>
void backward_chunk(const Chunk<Real>& c, const Matrix<Real>& state, const Matrix<Real>& d_o,
                    Matrix<Real>* ds, HeadGradients<Real>* grad) {
  const std::int64_t L = c.L;
  const std::int64_t K = c.head.K();
  const std::int64_t V = c.head.V();
  const Real s = c.head.scale;
  const auto go = [&](std::int64_t i) { return d_o.row(c.first + i); };
  const Matrix<Real> to_end = decay_to_end(c, L);
  const Matrix<Real> y = unexplained_values(c, state);
  const Matrix<Real> u = solve_lower(c, y);

  // dU = s N^T do + kh D;  X = A^T dU
  Matrix<Real> du(L, V);
  for (std::int64_t j = 0; j < L; ++j) {
    for (std::int64_t i = j; i < L; ++i)
      add_scaled(du.row(j), s * c.n(i, j), go(i), V);
    for (std::int64_t d = 0; d < K; ++d) {
      add_scaled(du.row(j), c.k(j)[d] * to_end(j, d), ds->row(d), V);
    }
  }
  const Matrix<Real> x = solve_lower_transposed(c, du);

  // dN = s tril(do U^T);  P = -strict_tril(X U^T), the gradient of Lo before its b_i is split off
  Matrix<Real> dn(L, L);
  Matrix<Real> p(L, L);
  for (std::int64_t i = 0; i < L; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      dn(i, j) = s * dot(go(i), u.row(j), V);
      if (j < i) p(i, j) = -dot(x.row(i), u.row(j), V);
    }
  }

  // Terms that meet the state: dqS = s 2^{Gc} (.) (do S^T), dkS = 2^{Gc_{L-1} - Gc} (.) (U D^T),
  // 2^{Gc} (.) Y with Y = -X S^T.
  Matrix<Real> dq_state(L, K);
  Matrix<Real> dk_state(L, K);
  Matrix<Real> y_state(L, K);
  for (std::int64_t i = 0; i < L; ++i) {
    for (std::int64_t d = 0; d < K; ++d) {
      dq_state(i, d) = s * c.from_start(i, d) * dot(go(i), state.row(d), V);
      dk_state(i, d) = to_end(i, d) * dot(u.row(i), ds->row(d), V);
      y_state(i, d) = -c.from_start(i, d) * dot(x.row(i), state.row(d), V);
    }
  }

  // Intra-chunk sweeps and, with the same decays, their part of dg: the pair (i, j) is multiplied
  // by the decay of every token in (j, i], so token l collects all pairs with j < l <= i.
  Matrix<Real> row(L, K);
  for (std::int64_t j = 0; j < L; ++j) {
    const Matrix<Real> decay = decay_from_row(c, j);
    std::vector<Real> pairs(static_cast<std::size_t>(K), Real(0));
    for (std::int64_t i = L - 1; i >= j; --i) {
      for (std::int64_t d = 0; d < K; ++d) {
        const Real kj = c.k(j)[d] * decay(i, d);
        const Real to_q = dn(i, j) * kj;  // to rq_i
        const Real to_k = p(i, j) * kj;   // to row_i; P is 0 on the diagonal
        row(i, d) += to_k;
        grad->dq(c.first + i, d) += to_q;
        grad->dk(c.first + j, d) +=  // col_j
            (dn(i, j) * c.q(i)[d] + p(i, j) * c.b(i) * c.k(i)[d]) * decay(i, d);
        if (i > j) {
          Real& sum = pairs[static_cast<std::size_t>(d)];
          sum += c.q(i)[d] * to_q + c.b(i) * c.k(i)[d] * to_k;
          grad->dg_ln(c.first + i, d) += sum;
        }
      }
    }
  }

  for (std::int64_t i = 0; i < L; ++i) {
    const std::int64_t t = c.first + i;
    add_scaled(grad->dv.row(t), c.b(i), x.row(i), V);
    grad->dbeta(t, 0) = dot(x.row(i), y.row(i), V) + dot(row.row(i), c.k(i), K);
    for (std::int64_t d = 0; d < K; ++d) {
      grad->dq(t, d) += dq_state(i, d);
      grad->dk(t, d) += c.b(i) * (y_state(i, d) + row(i, d)) + dk_state(i, d);
    }
  }

  // The rest of dg. Row i reads S through the decays of tokens 0..i, writes S' through those of
  // i+1..L-1, and S passes through all of them.
  for (std::int64_t d = 0; d < K; ++d) {
    const Real through = c.from_start(L - 1, d) * dot(state.row(d), ds->row(d), V);
    Real later_reads = 0;
    for (std::int64_t i = L - 1; i >= 0; --i) {
      later_reads += c.q(i)[d] * dq_state(i, d) + c.b(i) * c.k(i)[d] * y_state(i, d);
      grad->dg_ln(c.first + i, d) += later_reads + through;
    }
    Real earlier_writes = 0;
    for (std::int64_t i = 0; i < L; ++i) {
      grad->dg_ln(c.first + i, d) += earlier_writes;
      earlier_writes += c.k(i)[d] * dk_state(i, d);
    }
  }

  // dS = diag(2^{Gc_{L-1}}) D + s qt^T do - kt^T diag(b) X
  for (std::int64_t d = 0; d < K; ++d) {
    Real* out = ds->row(d);
    for (std::int64_t j = 0; j < V; ++j)
      out[j] *= c.from_start(L - 1, d);
    for (std::int64_t i = 0; i < L; ++i) {
      add_scaled(out, s * c.q(i)[d] * c.from_start(i, d), go(i), V);
      add_scaled(out, -c.b(i) * c.kt(i, d), x.row(i), V);
    }
  }
}

}  // namespace

template <typename Real>
void chunk_head_forward(const HeadInputs<Real>& head, std::int64_t C, Matrix<Real>* state,
                        Matrix<Real>* o, std::vector<Matrix<Real>>* block_states) {
  for (std::int64_t first = 0; first < head.T(); first += C) {
    const Chunk<Real> c = make_chunk(head, first, C);
    const Matrix<Real> u = solve_lower(c, unexplained_values(c, *state));
    write_output(c, *state, u, o);
    if (block_states != nullptr) {
      for (std::int64_t i = 0; i < c.L; ++i) {
        if ((first + i) % kStateBlockTokens != 0) continue;
        block_states->push_back(i == 0 ? *state : state_after(c, *state, u, i));
      }
    }
    *state = state_after(c, *state, u, c.L);
  }
}

template <typename Real>
HeadGradients<Real> chunk_head_backward(const HeadInputs<Real>& head, std::int64_t C,
                                        const Matrix<Real>& d_o, const Matrix<Real>& d_final_state,
                                        const std::vector<Matrix<Real>>& h_kv) {
  const std::int64_t T = head.T();
  std::vector<Matrix<Real>> starts;  // the state at the start of every chunk
  Matrix<Real> state = head.state0;
  for (std::int64_t first = 0; first < T; first += C) {
    if (!h_kv.empty() && first % kStateBlockTokens == 0) {
      state = h_kv[static_cast<std::size_t>(first / kStateBlockTokens)];
    }
    starts.push_back(state);
    const Chunk<Real> c = make_chunk(head, first, C);
    const Matrix<Real> u = solve_lower(c, unexplained_values(c, state));
    state = state_after(c, state, u, c.L);
  }

  HeadGradients<Real> grad{Matrix<Real>(T, head.K()), Matrix<Real>(T, head.K()),
                           Matrix<Real>(T, head.V()), Matrix<Real>(T, head.K()),
                           Matrix<Real>(T, 1),        d_final_state};
  for (std::int64_t chunk = static_cast<std::int64_t>(starts.size()) - 1; chunk >= 0; --chunk) {
    backward_chunk(make_chunk(head, chunk * C, C), starts[static_cast<std::size_t>(chunk)], d_o,
                   &grad.dstate0, &grad);
  }
  return grad;
}

template <typename Real>
void chunk_forward(const ChunkForwardParams& params, const core::Problem& problem) {
  for (std::int64_t n = 0; n < problem.dims.N; ++n) {
    const core::Sequence sequence = problem.sequence(n);
    for (std::int64_t hv = 0; hv < problem.dims.HV; ++hv) {
      const HeadInputs<Real> head = read_head<Real>(params.in, {}, problem, n, hv);
      Matrix<Real> state = head.state0;
      Matrix<Real> o(sequence.length, problem.dims.V);
      std::vector<Matrix<Real>> block_states;
      chunk_head_forward(head, problem.chunk, &state, &o,
                         params.h_kv.defined() ? &block_states : nullptr);
      write_rows(o, params.o, sequence, hv);
      for (std::size_t i = 0; i < block_states.size(); ++i) {
        write_state(block_states[i], params.h_kv,
                    sequence.first_block + static_cast<std::int64_t>(i), hv);
      }
      if (params.final_state_kv.defined()) write_state(state, params.final_state_kv, n, hv);
    }
  }
}

template <typename Real>
void chunk_backward(const ChunkBackwardParams& params, const core::Problem& problem) {
  run_backward<Real>(params, problem,
                     [&](const HeadInputs<Real>& head, const Matrix<Real>& d_o,
                         const Matrix<Real>& d_final_state, const std::vector<Matrix<Real>>& h_kv) {
                       return chunk_head_backward(head, problem.chunk, d_o, d_final_state, h_kv);
                     });
}

#define KDA_REF_INSTANTIATE(Real)                                                                  \
  template void chunk_head_forward<Real>(const HeadInputs<Real>&, std::int64_t, Matrix<Real>*,     \
                                         Matrix<Real>*, std::vector<Matrix<Real>>*);               \
  template HeadGradients<Real> chunk_head_backward<Real>(const HeadInputs<Real>&, std::int64_t,    \
                                                         const Matrix<Real>&, const Matrix<Real>&, \
                                                         const std::vector<Matrix<Real>>&);        \
  template void chunk_forward<Real>(const ChunkForwardParams&, const core::Problem&);              \
  template void chunk_backward<Real>(const ChunkBackwardParams&, const core::Problem&);
KDA_REF_INSTANTIATE(float)
KDA_REF_INSTANTIATE(double)
#undef KDA_REF_INSTANTIATE

}  // namespace kda::ref
