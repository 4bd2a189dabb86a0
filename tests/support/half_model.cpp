#include "support/half_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/problem.h"
#include "ref/gradients.h"
#include "ref/head.h"
#include "support/host_view.h"

namespace kda::test {
namespace {

using Mat = ref::Matrix<double>;
constexpr std::int64_t kChunk = 64;

// Rounds to the operands' type.
struct Rounding {
  DType operand;
  double operator()(double x) const { return rounded(x, operand); }
  Mat operator()(Mat x) const {
    for (std::int64_t i = 0; i < x.rows(); ++i) {
      for (std::int64_t j = 0; j < x.cols(); ++j)
        x(i, j) = rounded(x(i, j), operand);
    }
    return x;
  }
};

Mat transposed(const Mat& x) {
  Mat y(x.cols(), x.rows());
  for (std::int64_t i = 0; i < x.rows(); ++i) {
    for (std::int64_t j = 0; j < x.cols(); ++j)
      y(j, i) = x(i, j);
  }
  return y;
}

Mat operator*(const Mat& a, const Mat& b) {
  Mat c(a.rows(), b.cols());
  for (std::int64_t i = 0; i < a.rows(); ++i) {
    for (std::int64_t m = 0; m < a.cols(); ++m)
      ref::add_scaled(c.row(i), a(i, m), b.row(m), b.cols());
  }
  return c;
}

Mat sum(Mat a, double factor, const Mat& b) {
  for (std::int64_t i = 0; i < a.rows(); ++i)
    ref::add_scaled(a.row(i), factor, b.row(i), a.cols());
  return a;
}

// Row i times factor(i).
template <typename Factor>
Mat scaled_rows(Mat x, const Factor& factor) {
  for (std::int64_t i = 0; i < x.rows(); ++i) {
    for (std::int64_t j = 0; j < x.cols(); ++j)
      x(i, j) *= factor(i);
  }
  return x;
}

// Zero above the diagonal; with_diagonal says whether it stays.
Mat lower(Mat x, bool with_diagonal) {
  for (std::int64_t i = 0; i < x.rows(); ++i) {
    for (std::int64_t j = with_diagonal ? i + 1 : i; j < x.cols(); ++j)
      x(i, j) = 0.0;
  }
  return x;
}

// One chunk: its rows of the inputs and what forward and backward share.
struct HalfChunk {
  Rounding half;
  std::int64_t first, L;
  double scale;
  Mat q, k, v, gcum;  // gcum in log2
  std::vector<double> beta;
  Mat kt, qt, kh;    // rounded; no scale in qt
  Mat n, a;          // rounded; n with the scale
  Mat vb, kb, u, w;  // rounded

  double decay(std::int64_t i, std::int64_t j, std::int64_t d) const {
    return std::exp2(gcum(i, d) - gcum(j, d));
  }
  double b(std::int64_t i) const { return beta[static_cast<std::size_t>(i)]; }
};

Mat rows_of(const Mat& x, std::int64_t first, std::int64_t count) {
  Mat y(count, x.cols());
  for (std::int64_t i = 0; i < count; ++i)
    std::copy_n(x.row(first + i), x.cols(), y.row(i));
  return y;
}

HalfChunk make_chunk(const ref::HeadInputs<double>& head, std::int64_t first, Rounding half) {
  HalfChunk c;
  c.half = half;
  c.first = first;
  c.L = std::min(kChunk, head.T() - first);
  c.scale = head.scale;
  c.q = half(rows_of(head.q, first, c.L));
  c.k = half(rows_of(head.k, first, c.L));
  c.v = rows_of(head.v, first, c.L);
  c.gcum = rows_of(head.g_ln, first, c.L);
  const std::int64_t K = head.K();
  Mat kt(c.L, K), qt(c.L, K), kh(c.L, K);
  for (std::int64_t i = 0; i < c.L; ++i) {
    c.beta.push_back(head.beta(first + i, 0));
    for (std::int64_t d = 0; d < K; ++d) {
      c.gcum(i, d) = c.gcum(i, d) * std::numbers::log2e + (i > 0 ? c.gcum(i - 1, d) : 0.0);
    }
  }
  for (std::int64_t i = 0; i < c.L; ++i) {
    for (std::int64_t d = 0; d < K; ++d) {
      kt(i, d) = c.k(i, d) * std::exp2(c.gcum(i, d));
      qt(i, d) = c.q(i, d) * std::exp2(c.gcum(i, d));
      kh(i, d) = c.k(i, d) * c.decay(c.L - 1, i, d);
    }
  }
  Mat n(c.L, c.L), lo(c.L, c.L);
  for (std::int64_t i = 0; i < c.L; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      for (std::int64_t d = 0; d < K; ++d) {
        const double kj = c.k(j, d) * c.decay(i, j, d);
        n(i, j) += c.scale * c.q(i, d) * kj;
        if (i > j) lo(i, j) += c.b(i) * c.k(i, d) * kj;
      }
    }
  }
  Mat a(c.L, c.L);
  for (std::int64_t i = 0; i < c.L; ++i) {
    a(i, i) = 1.0;
    for (std::int64_t m = 0; m < i; ++m)
      ref::add_scaled(a.row(i), -lo(i, m), a.row(m), c.L);
  }
  const auto beta = [&](std::int64_t i) { return c.b(i); };
  c.kt = half(kt);
  c.qt = half(qt);
  c.kh = half(kh);
  c.n = half(n);
  c.a = half(a);
  c.vb = half(scaled_rows(c.v, beta));
  c.kb = half(scaled_rows(kt, beta));
  c.u = half(c.a * c.vb);
  c.w = half(c.a * c.kb);
  return c;
}

Mat new_values(const HalfChunk& c, const Mat& state16) {
  return c.half(sum(c.u, -1.0, c.w * state16));
}

// diag(2^gcum_last) x
Mat decayed(const HalfChunk& c, const Mat& x) {
  return scaled_rows(x, [&](std::int64_t d) { return std::exp2(c.gcum(c.L - 1, d)); });
}

Mat head_forward(const ref::HeadInputs<double>& head, Rounding half, Mat* state) {
  Mat o(head.T(), head.V());
  for (std::int64_t first = 0; first < head.T(); first += kChunk) {
    const HalfChunk c = make_chunk(head, first, half);
    const Mat s16 = half(*state);
    const Mat values = new_values(c, s16);
    const Mat out = half(sum(c.n * values, c.scale, c.qt * s16));
    for (std::int64_t i = 0; i < c.L; ++i)
      std::copy_n(out.row(i), out.cols(), o.row(first + i));
    *state = sum(decayed(c, *state), 1.0, transposed(c.kh) * values);
  }
  return o;
}

void chunk_backward(const HalfChunk& c, const Mat& s16, const Mat& d_o, Mat* ds,
                    ref::HeadGradients<double>* grad) {
  const std::int64_t K = c.k.cols();
  const Rounding half = c.half;
  const Mat values = new_values(c, s16);
  const Mat ds16 = half(*ds);
  const Mat s16_t = transposed(s16);
  const Mat a_t = transposed(c.a);
  const Mat du = half(sum(half(transposed(c.n) * d_o), 1.0, c.kh * ds16));
  const Mat dw = half(scaled_rows(du * s16_t, [](std::int64_t) { return -1.0; }));
  const Mat da =
      half(lower(sum(du * transposed(c.vb), 1.0, dw * transposed(c.kb)), /*with_diagonal=*/false));
  const Mat p = lower(scaled_rows(a_t * half(da * a_t), [](std::int64_t) { return -1.0; }), false);
  const Mat dn =
      lower(scaled_rows(d_o * transposed(values), [&](std::int64_t) { return c.scale; }), true);
  const Mat x = a_t * du;
  const Mat y = a_t * dw;
  Mat dq = scaled_rows(d_o * s16_t, [&](std::int64_t) { return c.scale; });
  Mat dk_state = values * transposed(ds16);
  Mat row(c.L, K), col(c.L, K);
  for (std::int64_t i = 0; i < c.L; ++i) {
    for (std::int64_t d = 0; d < K; ++d) {
      dq(i, d) *= std::exp2(c.gcum(i, d));
      dk_state(i, d) *= c.decay(c.L - 1, i, d);
    }
    for (std::int64_t j = 0; j <= i; ++j) {
      for (std::int64_t d = 0; d < K; ++d) {
        const double decay = c.decay(i, j, d);
        row(i, d) += p(i, j) * c.k(j, d) * decay;
        dq(i, d) += dn(i, j) * c.k(j, d) * decay;
        col(j, d) += (dn(i, j) * c.q(i, d) + p(i, j) * c.b(i) * c.k(i, d)) * decay;
      }
    }
  }
  std::vector<double> later(static_cast<std::size_t>(K));
  for (std::int64_t d = 0; d < K; ++d) {
    double& end = later[static_cast<std::size_t>(d)];
    end = std::exp2(c.gcum(c.L - 1, d)) * ref::dot(s16.row(d), ds16.row(d), s16.cols());
    for (std::int64_t i = 0; i < c.L; ++i)
      end += c.k(i, d) * dk_state(i, d);
  }
  for (std::int64_t i = c.L - 1; i >= 0; --i) {
    const std::int64_t t = c.first + i;
    grad->dbeta(t, 0) =
        ref::dot(x.row(i), c.v.row(i), c.v.cols()) + ref::dot(row.row(i), c.k.row(i), K);
    for (std::int64_t j = 0; j < x.cols(); ++j)
      grad->dv(t, j) = half(c.b(i) * x(i, j));
    for (std::int64_t d = 0; d < K; ++d) {
      const double from_w = std::exp2(c.gcum(i, d)) * y(i, d);
      const double k_row = c.b(i) * (from_w + row(i, d));
      const double k_col = dk_state(i, d) + col(i, d);
      grad->dbeta(t, 0) += from_w * c.k(i, d);
      grad->dq(t, d) = half(dq(i, d));
      grad->dk(t, d) = half(k_row + k_col);
      double& sum_d = later[static_cast<std::size_t>(d)];
      sum_d += c.q(i, d) * dq(i, d) + c.k(i, d) * (k_row - k_col);
      grad->dg_ln(t, d) = sum_d;
    }
  }
  *ds = sum(sum(decayed(c, *ds), c.scale, transposed(c.qt) * d_o), -1.0, transposed(c.w) * du);
}

ref::HeadGradients<double> head_backward(const ref::HeadInputs<double>& head, Rounding half,
                                         const Mat& d_o, const Mat& d_final) {
  const std::int64_t T = head.T();
  ref::HeadGradients<double> grad{Mat(T, head.K()), Mat(T, head.K()), Mat(T, head.V()),
                                  Mat(T, head.K()), Mat(T, 1),        d_final};
  std::vector<std::pair<HalfChunk, Mat>> chunks;
  Mat state = head.state0;
  for (std::int64_t first = 0; first < T; first += kChunk) {
    HalfChunk c = make_chunk(head, first, half);
    const Mat s16 = half(state);
    state = sum(decayed(c, state), 1.0, transposed(c.kh) * new_values(c, s16));
    chunks.emplace_back(std::move(c), s16);
  }
  for (auto it = chunks.rbegin(); it != chunks.rend(); ++it) {
    const auto& [c, s16] = *it;
    chunk_backward(c, s16, rows_of(d_o, c.first, c.L), &grad.dstate0, &grad);
  }
  return grad;
}

}  // namespace

Outputs half_operand_model(const Case& c, const CaseData& data, const OracleOptions& options,
                           DType operand) {
  const Rounding half{operand};
  Outputs out = oracle(c, data, options);  // for the shapes, and for h, which is not modelled
  if (options.forward) {
    RecurrentForwardParams p;
    p.in = f64_inputs(c, data);
    p.o = f64_view(out.at(Quantity::kO));
    if (c.final_state) p.final_state_kv = f64_view(out.at(Quantity::kFinalState));
    const core::Problem problem = core::check_recurrent_forward(p);
    for (std::int64_t n = 0; n < problem.dims.N; ++n) {
      for (std::int64_t hv = 0; hv < problem.dims.HV; ++hv) {
        const auto head = ref::read_head<double>(p.in, {}, problem, n, hv);
        Mat state = head.state0;
        const Mat o = head_forward(head, half, &state);
        ref::write_rows(o, p.o, problem.sequence(n), hv);
        if (c.final_state) ref::write_state(state, p.final_state_kv, n, hv);
      }
    }
  }
  if (options.backward) {
    const ChunkBackwardParams p = f64_backward_params(c, data, &out);
    ref::run_backward<double>(
        p, core::check_chunk_backward(p),
        [&](const ref::HeadInputs<double>& head, const Mat& d_o, const Mat& d_final,
            const std::vector<Mat>&) { return head_backward(head, half, d_o, d_final); });
  }
  return out;
}

}  // namespace kda::test
