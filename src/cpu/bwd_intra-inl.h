// The part of the chunk backward that stays inside the chunk: from the gradients of the triangular
// products to those of q, k and the decays, one tile of key channels at a time.
//
//   rq_i  = sum_{j<=i} dn_ij k_j D(i,j)        row_i = sum_{j<i} p_ij k_j D(i,j)
//   col_j = sum_{i>=j} (dn_ij q_i + p_ij beta_i k_i) D(i,j)
//   dq_i  = D(i,-1) (scale do S)_i + rq_i
//   dk    = kRow + kCol,  kRow_i = D(i,-1) (-beta X S)_i + beta_i row_i,
//                         kCol_j = D(15,j) (U D)_j + col_j
//   dg_t  = everything that decays across t: the pairs j < t <= i of both products, the reads of
//           S at i >= t, the writes to D at j < t, and S itself passing through.
// D(i,j) is the product of decays between j and i; the same split into products of alphas as in
// the forward (chunk_factors-inl.h), so nothing overflows here either. dg could also be the
// reverse prefix sum of q dq + k (kRow - kCol), but there the pairs on one side of t cancel only
// to rounding, which drowns a strong decay's small gradient; sums over the pairs that do cross
// have no such error.
#include "cpu/bwd_products-inl.h"
#include "cpu/chunk_factors-inl.h"

#if defined(KDA_CPU_BWD_INTRA_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_BWD_INTRA_INL_H_
#undef KDA_CPU_BWD_INTRA_INL_H_
#else
#define KDA_CPU_BWD_INTRA_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace kda::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct IntraInputs {
  const ChunkFactors* f;
  const float* alpha;  // [16][ld_k], as all others unless said
  const float* q;
  const float* k;
  const float* d_n;        // [16][16]
  const float* p;          // [16][16]
  const float* p_beta;     // [16][16]
  const float* minus_bxs;  // (-beta X) S
  const float* do_s;       // scale do S
  const float* u_d;        // U D
  const float* state_dot;  // [ld_k]
};

struct IntraOutputs {
  float* dq;     // [16][ld_k]
  float* dk;     // [16][ld_k]
  float* dg;     // [16][ld_k], of the natural-log decay
  float* row_k;  // [16][kLanes] added to: partial sums of row . k
  bool add;      // dq and dk are added to (further value heads of a group)
};

// Off-diagonal sweeps before their last factor, 8 rows each.
constexpr std::size_t kSweepLd = 2 * kLanes;
struct Sweeps {
  float rq8[8 * kSweepLd];
  float row8[8 * kSweepLd];
  float col8[8 * kSweepLd];
  float rq4[8 * kSweepLd];
  float row4[8 * kSweepLd];
  float col4[8 * kSweepLd];
};

template <int kVecs>
HWY_INLINE void sweep_rows(const float* a, std::size_t depth, const float* b, std::size_t ld,
                           float* out) {
  auto t = Tile<kVecs>::zeros();
  t.add_product(a, kChunk, 1, b, ld, depth);
  t.write(out, kSweepLd);
}

template <int kVecs>
HWY_INLINE void sweep_cols(const float* d_n, const float* q, const float* p_beta, const float* k,
                           std::size_t depth, std::size_t ld, float* out) {
  auto t = Tile<kVecs>::zeros();
  t.add_product(d_n, 1, kChunk, q, ld, depth);
  t.add_product(p_beta, 1, kChunk, k, ld, depth);
  t.write(out, kSweepLd);
}

template <int kVecs>
HWY_INLINE void off_diagonal(const IntraInputs& in, std::size_t at, Sweeps* s) {
  const ChunkFactors& f = *in.f;
  const std::size_t ld = f.ld_k;
  for (std::size_t m = 0; m < 8; m += 4) {
    const std::size_t rows = (8 + m) * kChunk;
    sweep_rows<kVecs>(in.d_n + rows, 8, f.kc8 + at, ld, s->rq8 + m * kSweepLd);
    sweep_rows<kVecs>(in.p + rows, 8, f.kc8 + at, ld, s->row8 + m * kSweepLd);
    sweep_cols<kVecs>(in.d_n + 8 * kChunk + m, f.qr8 + at, in.p_beta + 8 * kChunk + m, f.kr8 + at,
                      8, ld, s->col8 + m * kSweepLd);
    const std::size_t corner = (2 * m + 4) * kChunk + 2 * m;
    const std::size_t block = m * ld + at;
    sweep_rows<kVecs>(in.d_n + corner, 4, f.kc4 + block, ld, s->rq4 + m * kSweepLd);
    sweep_rows<kVecs>(in.p + corner, 4, f.kc4 + block, ld, s->row4 + m * kSweepLd);
    sweep_cols<kVecs>(in.d_n + corner, f.qr4 + block, in.p_beta + corner, f.kr4 + block, 4, ld,
                      s->col4 + m * kSweepLd);
  }
}

// One token of one vector of channels: its decays and the sweeps over its own block of 4.
struct TokenTerms {
  Vec k, q;
  Vec from_start;  // D(i,-1)
  Vec to_end;      // D(15,i)
  Vec rq, row, col;
  Vec crossing;  // pairs of its own block of 4 that decay across it
};

// Suffix sums over the tokens from the current one on.
struct Suffixes {
  Vec state;  // reads of the chunk's start state, and the state passing through
  Vec rows8;  // rows 8..15 of the 8x8 quarter
  Vec rows4;  // rows 4..7 or 12..15 of a 4x4 quarter
};

HWY_INLINE void finish_token(const IntraInputs& in, const IntraOutputs& out, std::size_t i,
                             std::size_t d, const TokenTerms& t, Suffixes* after) {
  const std::size_t at = i * in.f->ld_k + d;
  float* partial = out.row_k + i * kLanes;
  store(hn::MulAdd(t.row, t.k, load(partial)), partial);
  const Vec read_q = hn::Mul(t.from_start, load(in.do_s + at));
  const Vec read_k = hn::Mul(t.from_start, load(in.minus_bxs + at));
  after->state = hn::MulAdd(t.q, read_q, hn::MulAdd(t.k, read_k, after->state));
  Vec dq = hn::Add(read_q, t.rq);
  const Vec k_row = hn::MulAdd(splat(in.f->beta[i]), t.row, read_k);
  const Vec k_col = hn::MulAdd(t.to_end, load(in.u_d + at), t.col);
  Vec dk = hn::Add(k_row, k_col);
  const Vec rows = hn::Add(after->rows8, after->rows4);
  const Vec before = hn::Add(load(out.dg + at), t.crossing);
  store(hn::Add(hn::Add(before, rows), after->state), out.dg + at);
  if (out.add) {
    dq = hn::Add(dq, load(out.dq + at));
    dk = hn::Add(dk, load(out.dk + at));
  }
  store(dq, out.dq + at);
  store(dk, out.dk + at);
}

// Starts dg of one vector of channels with the sums over earlier tokens: writes to the state, and
// the columns of the quarter blocks.
HWY_INLINE void prefix_sums(const IntraInputs& in, const IntraOutputs& out, const Sweeps& s,
                            std::size_t d, std::size_t lane) {
  const ChunkFactors& f = *in.f;
  const std::size_t ld = f.ld_k;
  Vec writes = zero();
  Vec cols8 = zero();
  for (std::size_t i = 0; i < kChunk; i += 4) {
    Vec cols4 = zero();
    const bool first8 = i < 8;
    const bool first4 = i % 8 == 0;
    if (i == 8) cols8 = zero();  // from here on the quarter's rows count
    for (std::size_t r = 0; r < 4; ++r) {
      const std::size_t at = (i + r) * ld + d;
      store(hn::Add(writes, hn::Add(cols8, cols4)), out.dg + at);
      writes = hn::MulAdd(load(f.kh + at), load(in.u_d + at), writes);
      if (first8)
        cols8 = hn::MulAdd(load(f.kc8 + at), load(s.col8 + (i + r) * kSweepLd + lane), cols8);
      if (first4) {
        const std::size_t row = i / 2 + r;
        cols4 = hn::MulAdd(load(f.kc4 + row * ld + d), load(s.col4 + row * kSweepLd + lane), cols4);
      }
    }
  }
}

// Decays around a block of 4 tokens (see chunk_factors-inl.h).
struct BlockSpan {
  Vec before, after, since8, until8;
};

template <int kBlock>
HWY_INLINE void finish_block(const IntraInputs& in, const IntraOutputs& out, const Sweeps& s,
                             std::size_t d, std::size_t lane, const BlockSpan& span,
                             Suffixes* after) {
  constexpr std::size_t kFirst = 4 * kBlock;
  const std::size_t ld = in.f->ld_k;
  const float* a = in.alpha + kFirst * ld + d;
  const float* n = in.d_n + kFirst * kChunk + kFirst;
  const float* p = in.p + kFirst * kChunk + kFirst;
  const float* pb = in.p_beta + kFirst * kChunk + kFirst;
  const Vec k0 = load(in.k + kFirst * ld + d);
  const Vec k1 = load(in.k + (kFirst + 1) * ld + d);
  const Vec k2 = load(in.k + (kFirst + 2) * ld + d);
  const Vec k3 = load(in.k + (kFirst + 3) * ld + d);
  const Vec q0 = load(in.q + kFirst * ld + d);
  const Vec q1 = load(in.q + (kFirst + 1) * ld + d);
  const Vec q2 = load(in.q + (kFirst + 2) * ld + d);
  const Vec q3 = load(in.q + (kFirst + 3) * ld + d);
  const Vec a0 = load(a);
  const Vec d10 = load(a + ld);
  const Vec d21 = load(a + 2 * ld);
  const Vec d32 = load(a + 3 * ld);
  const Vec d20 = hn::Mul(d10, d21);
  const Vec d31 = hn::Mul(d21, d32);
  const Vec d30 = hn::Mul(d10, d31);

  // The sweeps between the blocks, times their last factor.
  constexpr std::size_t kRow8 = 4 * (kBlock % 2) * kSweepLd;
  constexpr std::size_t kRow4 = 4 * (kBlock / 2) * kSweepLd;
  const auto finish = [&](std::size_t r, Vec k, Vec q, Vec row_decay, Vec col_decay, Vec rq,
                          Vec row, Vec col, Vec crossing) HWY_ATTR {
    const std::size_t at8 = kRow8 + r * kSweepLd + lane;
    const std::size_t at4 = kRow4 + r * kSweepLd + lane;
    const Vec beta_k = hn::Mul(splat(in.f->beta[kFirst + r]), k);
    if constexpr (kBlock >= 2) {
      const Vec decay = hn::Mul(row_decay, span.since8);
      const Vec rq8 = hn::Mul(decay, load(s.rq8 + at8));
      const Vec row8 = hn::Mul(decay, load(s.row8 + at8));
      after->rows8 = hn::MulAdd(q, rq8, hn::MulAdd(beta_k, row8, after->rows8));
      rq = hn::Add(rq, rq8);
      row = hn::Add(row, row8);
    } else {
      col = hn::MulAdd(hn::Mul(col_decay, span.until8), load(s.col8 + at8), col);
    }
    if constexpr (kBlock % 2 == 1) {
      const Vec rq4 = hn::Mul(row_decay, load(s.rq4 + at4));
      const Vec row4 = hn::Mul(row_decay, load(s.row4 + at4));
      after->rows4 = hn::MulAdd(q, rq4, hn::MulAdd(beta_k, row4, after->rows4));
      rq = hn::Add(rq, rq4);
      row = hn::Add(row, row4);
    } else {
      col = hn::MulAdd(col_decay, load(s.col4 + at4), col);
    }
    finish_token(in, out, kFirst + r, d,
                 {k, q, hn::Mul(row_decay, span.before), hn::Mul(col_decay, span.after), rq, row,
                  col, crossing},
                 after);
  };
  if constexpr (kBlock < 2) after->rows8 = zero();
  after->rows4 = zero();

  // m_ij = D(i,j) (dn_ij q_i + p_ij beta_i k_i)
  const Vec m30 =
      hn::Mul(d30, hn::MulAdd(splat(n[3 * kChunk]), q3, hn::Mul(splat(pb[3 * kChunk]), k3)));
  const Vec m31 = hn::Mul(
      d31, hn::MulAdd(splat(n[3 * kChunk + 1]), q3, hn::Mul(splat(pb[3 * kChunk + 1]), k3)));
  const Vec m32 = hn::Mul(
      d32, hn::MulAdd(splat(n[3 * kChunk + 2]), q3, hn::Mul(splat(pb[3 * kChunk + 2]), k3)));
  Vec x0 = hn::Mul(k0, d30);
  Vec x1 = hn::Mul(k1, d31);
  const Vec x2 = hn::Mul(k2, d32);
  Vec rq = hn::Mul(splat(n[3 * kChunk]), x0);
  rq = hn::MulAdd(splat(n[3 * kChunk + 1]), x1, rq);
  rq = hn::MulAdd(splat(n[3 * kChunk + 2]), x2, rq);
  rq = hn::MulAdd(splat(n[3 * kChunk + 3]), k3, rq);
  Vec row = hn::Mul(splat(p[3 * kChunk]), x0);
  row = hn::MulAdd(splat(p[3 * kChunk + 1]), x1, row);
  row = hn::MulAdd(splat(p[3 * kChunk + 2]), x2, row);
  finish(3, k3, q3, hn::Mul(a0, d30), splat(1.0F), rq, row, hn::Mul(splat(n[3 * kChunk + 3]), q3),
         hn::MulAdd(k0, m30, hn::MulAdd(k1, m31, hn::Mul(k2, m32))));

  const Vec m20 =
      hn::Mul(d20, hn::MulAdd(splat(n[2 * kChunk]), q2, hn::Mul(splat(pb[2 * kChunk]), k2)));
  const Vec m21 = hn::Mul(
      d21, hn::MulAdd(splat(n[2 * kChunk + 1]), q2, hn::Mul(splat(pb[2 * kChunk + 1]), k2)));
  const Vec past0 = hn::Add(m20, m30);
  const Vec past1 = hn::Add(m21, m31);
  x0 = hn::Mul(k0, d20);
  x1 = hn::Mul(k1, d21);
  rq = hn::Mul(splat(n[2 * kChunk]), x0);
  rq = hn::MulAdd(splat(n[2 * kChunk + 1]), x1, rq);
  rq = hn::MulAdd(splat(n[2 * kChunk + 2]), k2, rq);
  row = hn::MulAdd(splat(p[2 * kChunk + 1]), x1, hn::Mul(splat(p[2 * kChunk]), x0));
  finish(2, k2, q2, hn::Mul(a0, d20), d32, rq, row, hn::MulAdd(splat(n[2 * kChunk + 2]), q2, m32),
         hn::MulAdd(k0, past0, hn::Mul(k1, past1)));

  const Vec m10 = hn::Mul(d10, hn::MulAdd(splat(n[kChunk]), q1, hn::Mul(splat(pb[kChunk]), k1)));
  const Vec all0 = hn::Add(m10, past0);
  x0 = hn::Mul(k0, d10);
  rq = hn::MulAdd(splat(n[kChunk + 1]), k1, hn::Mul(splat(n[kChunk]), x0));
  finish(1, k1, q1, hn::Mul(a0, d10), d31, rq, hn::Mul(splat(p[kChunk]), x0),
         hn::MulAdd(splat(n[kChunk + 1]), q1, past1), hn::Mul(k0, all0));

  finish(0, k0, q0, a0, d30, hn::Mul(splat(n[0]), k0), zero(), hn::MulAdd(splat(n[0]), q0, all0),
         zero());
}

// One vector of channels, from the last token to the first.
HWY_INLINE void finish_channels(const IntraInputs& in, const IntraOutputs& out, const Sweeps& s,
                                std::size_t d, std::size_t lane) {
  const ChunkFactors& f = *in.f;
  const std::size_t ld = f.ld_k;
  const float* a = in.alpha + d;
  const Vec one = splat(1.0F);
  const Vec t0 = block_total(a, ld);
  const Vec t1 = block_total(a + 4 * ld, ld);
  const Vec t2 = block_total(a + 8 * ld, ld);
  const Vec t3 = block_total(a + 12 * ld, ld);
  const Vec t01 = hn::Mul(t0, t1);
  const Vec t23 = hn::Mul(t2, t3);
  const Vec decay = hn::Add(load(f.fade + d), load(f.keep + d));
  prefix_sums(in, out, s, d, lane);
  Suffixes after = {hn::Mul(decay, load(in.state_dot + d)), zero(), zero()};
  finish_block<3>(in, out, s, d, lane, {hn::Mul(t01, t2), one, t2, one}, &after);
  finish_block<2>(in, out, s, d, lane, {t01, t3, one, one}, &after);
  finish_block<1>(in, out, s, d, lane, {t0, t23, one, one}, &after);
  finish_block<0>(in, out, s, d, lane, {one, hn::Mul(t1, t23), one, t1}, &after);
}

inline HWY_NOINLINE void intra_backward(const IntraInputs& in, const IntraOutputs& out,
                                        std::size_t width) {
  Sweeps s;
  std::size_t d = 0;
  for (; d + 2 * kLanes <= width; d += 2 * kLanes) {
    off_diagonal<2>(in, d, &s);
    finish_channels(in, out, s, d, 0);
    finish_channels(in, out, s, d + kLanes, kLanes);
  }
  for (; d < width; d += kLanes) {
    off_diagonal<1>(in, d, &s);
    finish_channels(in, out, s, d, 0);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
