// The key side of one 16-token chunk: decayed rows and the two triangular products.
//
// With alpha_i = exp(g_i) and D(i,j) = alpha_{j+1} ... alpha_i (elementwise over K, 1 for i = j):
//   kt_i = k_i D(i,-1)     qt_i = q_i D(i,-1)     kh_j = k_j D(15,j)     fade + keep = D(15,-1)
//   lo_ij = beta_i sum_d k_id k_jd D(i,j)_d  (i > j)      n_ij = sum_d q_id k_jd D(i,j)_d  (i >= j)
//
// Numerics: no exponent is ever subtracted from another. Every D is a product of alphas that all
// lie between j and i: the chunk is split 16 = 8 + 8, 8 = 4 + 4, each off-diagonal quarter takes
// row factors from its own first row and column factors to its own last column, and the 4x4
// diagonal blocks step through the recurrence. Nothing is divided or clamped, so a decay of zero
// (hard reset), the weakest gate and a growing one are all exact to rounding.
#include "cpu/chunk_plan.h"
#include "cpu/math-inl.h"
#include "cpu/rows-inl.h"

#if defined(KDA_CPU_CHUNK_FACTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_CHUNK_FACTORS_INL_H_
#undef KDA_CPU_CHUNK_FACTORS_INL_H_
#else
#define KDA_CPU_CHUNK_FACTORS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace kda::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Natural-log decay of one vector of channels.
HWY_INLINE Vec decay_ln(const HeadGate& gate, Vec x, std::size_t channel) {
  if (!gate.raw) return x;
  const Vec z = hn::Add(x, load(gate.bias + channel));
  if (gate.bounded) {
    return hn::Mul(splat(gate.lower_bound_ln), sigmoid(hn::Mul(splat(gate.exp_a), z)));
  }
  return hn::Mul(splat(-gate.exp_a), softplus(z));
}

// alpha of `count` rows and the sum of their logarithms; the missing rows of the chunk neither
// decay nor write.
inline HWY_NOINLINE void decay_rows(const Block& g, const HeadGate& gate, std::size_t count,
                                    std::size_t width, float* alpha, std::size_t ld, float* g_sum) {
  fill_rows(g_sum, ld, 1, width, 0.0F);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t d = 0; d < width; d += kLanes) {
      const Vec a = decay_ln(gate, load(g.at + i * g.ld + d), d);
      store(exp(a), alpha + i * ld + d);
      store(hn::Add(load(g_sum + d), a), g_sum + d);
    }
  }
  fill_rows(alpha + count * ld, ld, kChunk - count, width, 1.0F);
}

// y = x * rstd in place, rounded to bf16 when the tensors are.
inline HWY_NOINLINE void normalise_rows(float* x, std::size_t ld, std::size_t count,
                                        std::size_t width, bool round_bf16, float* rstd) {
  for (std::size_t i = 0; i < count; ++i) {
    float* row = x + i * ld;
    Vec squares = zero();
    for (std::size_t d = 0; d < width; d += kLanes) {
      const Vec v = load(row + d);
      squares = hn::MulAdd(v, v, squares);
    }
    rstd[i] = 1.0F / std::sqrt(lane_sum(squares) + static_cast<float>(kL2NormEps));
    for (std::size_t d = 0; d < width; d += kLanes) {
      const Vec y = hn::Mul(load(row + d), splat(rstd[i]));
      store(round_bf16 ? rounded_to_bf16(y) : y, row + d);
    }
  }
}

// 2 x 4 dot products of rows a and rows b.
HWY_INLINE void dot_2x4(const float* HWY_RESTRICT a, std::size_t lda, const float* HWY_RESTRICT b,
                        std::size_t ldb, std::size_t width, float* out, std::size_t ldo) {
  Vec s00 = zero(), s01 = zero(), s02 = zero(), s03 = zero();
  Vec s10 = zero(), s11 = zero(), s12 = zero(), s13 = zero();
  for (std::size_t d = 0; d < width; d += kLanes) {
    const Vec a0 = load(a + d);
    const Vec a1 = load(a + lda + d);
    const Vec b0 = load(b + d);
    const Vec b1 = load(b + ldb + d);
    s00 = hn::MulAdd(a0, b0, s00);
    s10 = hn::MulAdd(a1, b0, s10);
    s01 = hn::MulAdd(a0, b1, s01);
    s11 = hn::MulAdd(a1, b1, s11);
    const Vec b2 = load(b + 2 * ldb + d);
    const Vec b3 = load(b + 3 * ldb + d);
    s02 = hn::MulAdd(a0, b2, s02);
    s12 = hn::MulAdd(a1, b2, s12);
    s03 = hn::MulAdd(a0, b3, s03);
    s13 = hn::MulAdd(a1, b3, s13);
  }
  store_sums(s00, s01, s02, s03, out);
  store_sums(s10, s11, s12, s13, out + ldo);
}

// rows x cols dot products, rows a multiple of 2, cols of 4.
inline HWY_NOINLINE void dots(Block a, std::size_t rows, Block b, std::size_t cols,
                              std::size_t width, float* out, std::size_t ldo) {
  for (std::size_t i = 0; i < rows; i += 2) {
    for (std::size_t j = 0; j < cols; j += 4) {
      dot_2x4(a.at + i * a.ld, a.ld, b.at + j * b.ld, b.ld, width, out + i * ldo + j, ldo);
    }
  }
}

// Decays around one block of 4 tokens, one vector of channels.
struct BlockDecay {
  Vec before;  // over the chunk's earlier tokens
  Vec after;   // over the chunk's later tokens
  Vec since8;  // from row 8 to the block's start
  Vec until8;  // from the block's end to row 7
};

// One token of a block: `row` is the decay from the block's first token on (inclusive), `col` the
// decay after the token to the block's end.
template <int kBlock>
HWY_INLINE void scale_row(Vec k, Vec q, Vec row, Vec col, const BlockDecay& decay, std::size_t at,
                          std::size_t at4, std::size_t at8, const ChunkFactors& f) {
  const Vec kr = hn::Mul(k, row);
  const Vec qr = hn::Mul(q, row);
  const Vec kc = hn::Mul(k, col);
  store(hn::Mul(kr, decay.before), f.kt + at);
  store(hn::Mul(qr, decay.before), f.qt + at);
  store(hn::Mul(kc, decay.after), f.kh + at);
  if constexpr (kBlock < 2) {
    store(hn::Mul(kc, decay.until8), f.kc8 + at8);
  } else {
    store(hn::Mul(kr, decay.since8), f.kr8 + at8);
    store(hn::Mul(qr, decay.since8), f.qr8 + at8);
  }
  if constexpr (kBlock % 2 == 0) {
    store(kc, f.kc4 + at4);
  } else {
    store(kr, f.kr4 + at4);
    store(qr, f.qr4 + at4);
  }
}

template <int kBlock>
HWY_INLINE void scale_block(const Block& alpha, const Block& q, const Block& k,
                            const BlockDecay& decay, std::size_t d, const ChunkFactors& f) {
  const float* a = alpha.at + 4 * kBlock * alpha.ld + d;
  const float* qi = q.at + 4 * kBlock * q.ld + d;
  const float* ki = k.at + 4 * kBlock * k.ld + d;
  const std::size_t ld = f.ld_k;
  const std::size_t at = 4 * kBlock * ld + d;
  const std::size_t at4 = 4 * (kBlock / 2) * ld + d;
  const std::size_t at8 = 4 * (kBlock % 2) * ld + d;
  const Vec a1 = load(a + alpha.ld);
  const Vec a2 = load(a + 2 * alpha.ld);
  const Vec a3 = load(a + 3 * alpha.ld);
  const Vec a23 = hn::Mul(a2, a3);
  Vec row = load(a);
  scale_row<kBlock>(load(ki), load(qi), row, hn::Mul(a1, a23), decay, at, at4, at8, f);
  row = hn::Mul(row, a1);
  scale_row<kBlock>(load(ki + k.ld), load(qi + q.ld), row, a23, decay, at + ld, at4 + ld, at8 + ld,
                    f);
  row = hn::Mul(row, a2);
  scale_row<kBlock>(load(ki + 2 * k.ld), load(qi + 2 * q.ld), row, a3, decay, at + 2 * ld,
                    at4 + 2 * ld, at8 + 2 * ld, f);
  row = hn::Mul(row, a3);
  scale_row<kBlock>(load(ki + 3 * k.ld), load(qi + 3 * q.ld), row, splat(1.0F), decay, at + 3 * ld,
                    at4 + 3 * ld, at8 + 3 * ld, f);
}

// Decay over 4 tokens.
HWY_INLINE Vec block_total(const float* alpha, std::size_t ld) {
  return hn::Mul(hn::Mul(load(alpha), load(alpha + ld)),
                 hn::Mul(load(alpha + 2 * ld), load(alpha + 3 * ld)));
}

HWY_INLINE void store_fade(Vec g_sum, Vec decay, std::size_t d, const ChunkFactors& f) {
  const auto slow = hn::Lt(hn::Abs(g_sum), splat(0.34F));
  store(hn::IfThenElse(slow, expm1_small(g_sum), decay), f.fade + d);
  store(hn::IfThenElseZero(slow, splat(1.0F)), f.keep + d);
}

// The decayed rows, one vector of channels at a time.
inline HWY_NOINLINE void scale_rows(const Block& alpha, const Block& q, const Block& k,
                                    std::size_t width, const ChunkFactors& f) {
  const Vec one = splat(1.0F);
  for (std::size_t d = 0; d < width; d += kLanes) {
    const Vec t0 = block_total(alpha.at + d, alpha.ld);
    const Vec t1 = block_total(alpha.at + 4 * alpha.ld + d, alpha.ld);
    const Vec t2 = block_total(alpha.at + 8 * alpha.ld + d, alpha.ld);
    const Vec t3 = block_total(alpha.at + 12 * alpha.ld + d, alpha.ld);
    const Vec t01 = hn::Mul(t0, t1);
    const Vec t23 = hn::Mul(t2, t3);
    scale_block<0>(alpha, q, k, {one, hn::Mul(t1, t23), one, t1}, d, f);
    scale_block<1>(alpha, q, k, {t0, t23, one, one}, d, f);
    scale_block<2>(alpha, q, k, {t01, t3, one, one}, d, f);
    scale_block<3>(alpha, q, k, {hn::Mul(t01, t2), one, t2, one}, d, f);
    store_fade(load(f.g_sum + d), hn::Mul(t01, t23), d, f);
  }
}

// A 4x4 diagonal block of both products, stepping the keys through the recurrence. Two sweeps keep
// the sums of each in registers.
inline HWY_NOINLINE void diagonal_4x4(Block alpha, Block q, Block k, std::size_t width, float* lo,
                                      float* n) {
  Vec n00 = zero(), n10 = zero(), n11 = zero(), n20 = zero(), n21 = zero(), n22 = zero();
  Vec n30 = zero(), n31 = zero(), n32 = zero(), n33 = zero();
  for (std::size_t d = 0; d < width; d += kLanes) {
    Vec x0 = load(k.at + d);
    n00 = hn::MulAdd(load(q.at + d), x0, n00);
    Vec a = load(alpha.at + alpha.ld + d);
    Vec y = load(q.at + q.ld + d);
    Vec x1 = load(k.at + k.ld + d);
    x0 = hn::Mul(x0, a);
    n10 = hn::MulAdd(y, x0, n10);
    n11 = hn::MulAdd(y, x1, n11);
    a = load(alpha.at + 2 * alpha.ld + d);
    y = load(q.at + 2 * q.ld + d);
    Vec x2 = load(k.at + 2 * k.ld + d);
    x0 = hn::Mul(x0, a);
    x1 = hn::Mul(x1, a);
    n20 = hn::MulAdd(y, x0, n20);
    n21 = hn::MulAdd(y, x1, n21);
    n22 = hn::MulAdd(y, x2, n22);
    a = load(alpha.at + 3 * alpha.ld + d);
    y = load(q.at + 3 * q.ld + d);
    n30 = hn::MulAdd(y, hn::Mul(x0, a), n30);
    n31 = hn::MulAdd(y, hn::Mul(x1, a), n31);
    n32 = hn::MulAdd(y, hn::Mul(x2, a), n32);
    n33 = hn::MulAdd(y, load(k.at + 3 * k.ld + d), n33);
  }
  store_sums(n00, zero(), zero(), zero(), n);
  store_sums(n10, n11, zero(), zero(), n + kChunk);
  store_sums(n20, n21, n22, zero(), n + 2 * kChunk);
  store_sums(n30, n31, n32, n33, n + 3 * kChunk);

  Vec l10 = zero(), l20 = zero(), l21 = zero(), l30 = zero(), l31 = zero(), l32 = zero();
  for (std::size_t d = 0; d < width; d += kLanes) {
    Vec x0 = hn::Mul(load(k.at + d), load(alpha.at + alpha.ld + d));
    Vec x1 = load(k.at + k.ld + d);
    l10 = hn::MulAdd(x1, x0, l10);
    Vec a = load(alpha.at + 2 * alpha.ld + d);
    const Vec x2 = load(k.at + 2 * k.ld + d);
    x0 = hn::Mul(x0, a);
    x1 = hn::Mul(x1, a);
    l20 = hn::MulAdd(x2, x0, l20);
    l21 = hn::MulAdd(x2, x1, l21);
    a = load(alpha.at + 3 * alpha.ld + d);
    const Vec y = load(k.at + 3 * k.ld + d);
    l30 = hn::MulAdd(y, hn::Mul(x0, a), l30);
    l31 = hn::MulAdd(y, hn::Mul(x1, a), l31);
    l32 = hn::MulAdd(y, hn::Mul(x2, a), l32);
  }
  store_sums(zero(), zero(), zero(), zero(), lo);
  store_sums(l10, zero(), zero(), zero(), lo + kChunk);
  store_sums(l20, l21, zero(), zero(), lo + 2 * kChunk);
  store_sums(l30, l31, l32, zero(), lo + 3 * kChunk);
}

// Fills f from alpha, q, k (16 rows each, `width` channels) and f.beta. The products' upper
// triangles are not written where no reader looks; f.lo_neg is -lo.
HWY_INLINE void chunk_factors(const Block& alpha, const Block& q, const Block& k, std::size_t width,
                              const ChunkFactors& f) {
  scale_rows(alpha, q, k, width, f);
  const std::size_t ld = f.ld_k;
  dots({f.kr8, ld}, 8, {f.kc8, ld}, 8, width, f.lo_neg + 8 * kChunk, kChunk);
  dots({f.qr8, ld}, 8, {f.kc8, ld}, 8, width, f.n + 8 * kChunk, kChunk);
  for (std::size_t half = 0; half < 2; ++half) {
    const std::size_t at = (8 * half + 4) * kChunk + 8 * half;
    dots({f.kr4 + 4 * half * ld, ld}, 4, {f.kc4 + 4 * half * ld, ld}, 4, width, f.lo_neg + at,
         kChunk);
    dots({f.qr4 + 4 * half * ld, ld}, 4, {f.kc4 + 4 * half * ld, ld}, 4, width, f.n + at, kChunk);
  }
  for (std::size_t i = 0; i < kChunk; i += 4) {
    diagonal_4x4({alpha.at + i * alpha.ld, alpha.ld}, {q.at + i * q.ld, q.ld},
                 {k.at + i * k.ld, k.ld}, width, f.lo_neg + i * kChunk + i, f.n + i * kChunk + i);
  }
  for (std::size_t i = 0; i < kChunk; ++i) {
    for (std::size_t j = 0; j < i; ++j)
      f.lo_neg[i * kChunk + j] *= -f.beta[i];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
