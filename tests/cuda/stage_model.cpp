#include "cuda/stage_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace kda::test {
namespace {

constexpr std::int64_t kTokens = 64;

template <typename Element>
Mat make(std::int64_t rows, std::int64_t cols, const Element& element) {
  Mat m(rows, cols);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j)
      m(i, j) = element(i, j);
  }
  return m;
}

double row_dot(const Mat& x, const Mat& y, std::int64_t i) {
  return ref::dot(x.row(i), y.row(i), x.cols());
}

Mat rows_of(const Mat& x, std::int64_t first, std::int64_t count) {
  return make(count, x.cols(), [&](auto i, auto j) { return x(first + i, j); });
}

// 2^(Gc_i - Gc_j) of a channel.
double decay_between(const StageChunk& c, std::int64_t i, std::int64_t j, std::int64_t d) {
  return std::exp2(c.gcum(i, d) - c.gcum(j, d));
}

double beta_of(const StageChunk& c, std::int64_t i) { return c.beta[static_cast<std::size_t>(i)]; }

}  // namespace

Mat product(const Mat& x, const Mat& y) {
  Mat z(x.rows(), y.cols());
  for (std::int64_t i = 0; i < x.rows(); ++i) {
    for (std::int64_t m = 0; m < x.cols(); ++m)
      ref::add_scaled(z.row(i), x(i, m), y.row(m), y.cols());
  }
  return z;
}

Mat product_tn(const Mat& x, const Mat& y) {
  Mat z(x.cols(), y.cols());
  for (std::int64_t m = 0; m < x.rows(); ++m) {
    for (std::int64_t i = 0; i < x.cols(); ++i)
      ref::add_scaled(z.row(i), x(m, i), y.row(m), y.cols());
  }
  return z;
}

Mat product_nt(const Mat& x, const Mat& y) {
  return make(x.rows(), y.rows(),
              [&](auto i, auto j) { return ref::dot(x.row(i), y.row(j), x.cols()); });
}

void gate_cumsum(StageChunk* c) {
  c->gcum = Mat(c->L, c->g_ln.cols());
  for (std::int64_t i = 0; i < c->L; ++i) {
    for (std::int64_t d = 0; d < c->g_ln.cols(); ++d) {
      c->gcum(i, d) = (i > 0 ? c->gcum(i - 1, d) : 0.0) + c->g_ln(i, d) * std::numbers::log2e;
    }
  }
}

void intra(StageChunk* c) {
  const std::int64_t L = c->L;
  const std::int64_t K = c->k.cols();
  c->kt = make(L, K, [&](auto i, auto d) { return c->k(i, d) * std::exp2(c->gcum(i, d)); });
  c->qt =
      make(L, K, [&](auto i, auto d) { return c->scale * c->q(i, d) * std::exp2(c->gcum(i, d)); });
  c->kh = make(L, K, [&](auto i, auto d) { return c->k(i, d) * decay_between(*c, L - 1, i, d); });
  c->decay.clear();
  for (std::int64_t d = 0; d < K; ++d)
    c->decay.push_back(std::exp2(c->gcum(L - 1, d)));
  const auto pairs = [&](const Mat& left, std::int64_t i, std::int64_t j) {
    double sum = 0.0;
    for (std::int64_t d = 0; d < K; ++d)
      sum += left(i, d) * c->k(j, d) * decay_between(*c, i, j, d);
    return sum;
  };
  c->a_qk = make(L, L, [&](auto i, auto j) { return i >= j ? c->scale * pairs(c->q, i, j) : 0.0; });
  c->a_kk = make(L, L, [&](auto i, auto j) { return i > j ? pairs(c->k, i, j) : 0.0; });
  c->t_inv = Mat(L, L);
  for (std::int64_t i = 0; i < L; ++i) {  // (I + diag(beta) a_kk) t_inv = I, row by row
    c->t_inv(i, i) = 1.0;
    for (std::int64_t j = 0; j < i; ++j)
      ref::add_scaled(c->t_inv.row(i), -beta_of(*c, i) * c->a_kk(i, j), c->t_inv.row(j), L);
  }
}

void wy(StageChunk* c) {
  const auto with_beta = [&](const Mat& x) {
    return make(c->L, x.cols(), [&](auto i, auto d) { return beta_of(*c, i) * x(i, d); });
  };
  c->w = product(c->t_inv, with_beta(c->kt));
  c->u = product(c->t_inv, with_beta(c->v));
}

void output_and_state(StageChunk* c) {
  const Mat ws = product(c->w, c->state);
  c->v_new = make(c->L, ws.cols(), [&](auto i, auto j) { return c->u(i, j) - ws(i, j); });
  const Mat inter = product(c->qt, c->state);
  const Mat local = product(c->a_qk, c->v_new);
  c->o = make(c->L, ws.cols(), [&](auto i, auto j) { return inter(i, j) + local(i, j); });
  const Mat added = product_tn(c->kh, c->v_new);
  c->next_state = make(c->state.rows(), c->state.cols(), [&](auto d, auto j) {
    return c->decay[static_cast<std::size_t>(d)] * c->state(d, j) + added(d, j);
  });
}

void output_bwd(StageChunk* c) {
  const Mat pairs = product_nt(c->d_o, c->v_new);
  c->d_a_qk =
      make(c->L, c->L, [&](auto i, auto j) { return i >= j ? c->scale * pairs(i, j) : 0.0; });
  c->dv_local = product_tn(c->a_qk, c->d_o);
}

void state_bwd(StageChunk* c) {
  const Mat through = product(c->kh, c->d_state);
  c->d_u =
      make(c->L, through.cols(), [&](auto i, auto j) { return c->dv_local(i, j) + through(i, j); });
  c->x = product_tn(c->t_inv, c->d_u);
  const Mat read = product_tn(c->qt, c->d_o);
  const Mat corrected = product_tn(c->w, c->d_u);
  c->before = make(c->d_state.rows(), c->d_state.cols(), [&](auto d, auto j) {
    return c->decay[static_cast<std::size_t>(d)] * c->d_state(d, j) + read(d, j) - corrected(d, j);
  });
}

void local_bwd(StageChunk* c) {
  const std::int64_t L = c->L;
  const std::int64_t K = c->k.cols();
  const Mat read = product(c->kt, c->state);
  const Mat rest = make(L, read.cols(),
                        [&](auto i, auto j) { return beta_of(*c, i) * (c->v(i, j) - read(i, j)); });
  c->v_new = product(c->t_inv, rest);
  const Mat d_n = product_nt(c->d_o, c->v_new);
  const Mat x_u = product_nt(c->x, c->v_new);
  const auto d_a = [&](auto i, auto j) { return i >= j ? c->scale * d_n(i, j) : 0.0; };
  const auto p = [&](auto i, auto j) { return i > j ? -x_u(i, j) : 0.0; };
  c->d_a_qk = make(L, L, d_a);
  const Mat do_s = product_nt(c->d_o, c->state);
  const Mat x_s = product_nt(c->x, c->state);
  const Mat u_d = product_nt(c->v_new, c->d_state);
  Mat row(L, K);
  Mat col(L, K);
  c->dq = Mat(L, K);
  for (std::int64_t i = 0; i < L; ++i) {
    for (std::int64_t d = 0; d < K; ++d) {
      c->dq(i, d) = c->scale * std::exp2(c->gcum(i, d)) * do_s(i, d);
      row(i, d) = -std::exp2(c->gcum(i, d)) * x_s(i, d);
      col(i, d) = decay_between(*c, L - 1, i, d) * u_d(i, d);
    }
  }
  std::vector<double> entering(static_cast<std::size_t>(K));  // dG of the last row beside its own
  for (std::int64_t d = 0; d < K; ++d) {
    double sum = 0.0;
    for (std::int64_t j = 0; j < c->state.cols(); ++j)
      sum += c->state(d, j) * c->d_state(d, j);
    sum *= std::exp2(c->gcum(L - 1, d));
    for (std::int64_t i = 0; i < L; ++i)
      sum += c->k(i, d) * col(i, d);
    entering[static_cast<std::size_t>(d)] = sum;
  }
  for (std::int64_t i = 0; i < L; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      for (std::int64_t d = 0; d < K; ++d) {
        const double e = decay_between(*c, i, j, d);
        c->dq(i, d) += d_a(i, j) * c->k(j, d) * e;
        row(i, d) += p(i, j) * c->k(j, d) * e;
        col(j, d) += (d_a(i, j) * c->q(i, d) + p(i, j) * beta_of(*c, i) * c->k(i, d)) * e;
      }
    }
  }
  c->dk = make(L, K, [&](auto i, auto d) { return beta_of(*c, i) * row(i, d) + col(i, d); });
  c->dv = make(L, c->x.cols(), [&](auto i, auto j) { return beta_of(*c, i) * c->x(i, j); });
  c->dbeta.clear();
  for (std::int64_t i = 0; i < L; ++i)
    c->dbeta.push_back(row_dot(c->x, c->v, i) + row_dot(row, c->k, i));
  c->dg = Mat(L, K);
  for (std::int64_t d = 0; d < K; ++d) {
    double sum = entering[static_cast<std::size_t>(d)];
    for (std::int64_t i = L; i-- > 0;) {
      sum += c->q(i, d) * c->dq(i, d) + c->k(i, d) * (beta_of(*c, i) * row(i, d) - col(i, d));
      c->dg(i, d) = sum;
    }
  }
}

std::vector<StageChunk> run_all_stages(const ref::HeadInputs<double>& head, const Mat& d_o,
                                       const Mat& d_final_state) {
  std::vector<StageChunk> chunks;
  Mat state = head.state0;
  for (std::int64_t first = 0; first < head.T(); first += kTokens) {
    StageChunk c;
    c.L = std::min(kTokens, head.T() - first);
    c.scale = head.scale;
    c.q = rows_of(head.q, first, c.L);
    c.k = rows_of(head.k, first, c.L);
    c.v = rows_of(head.v, first, c.L);
    c.d_o = rows_of(d_o, first, c.L);
    c.g_ln = rows_of(head.g_ln, first, c.L);
    for (std::int64_t i = 0; i < c.L; ++i)
      c.beta.push_back(head.beta(first + i, 0));
    c.state = state;
    gate_cumsum(&c);
    intra(&c);
    wy(&c);
    output_and_state(&c);
    output_bwd(&c);
    state = c.next_state;
    chunks.push_back(std::move(c));
  }
  Mat d_state = d_final_state;
  for (std::size_t i = chunks.size(); i-- > 0;) {
    chunks[i].d_state = d_state;
    state_bwd(&chunks[i]);
    local_bwd(&chunks[i]);
    d_state = chunks[i].before;
  }
  return chunks;
}

}  // namespace kda::test
