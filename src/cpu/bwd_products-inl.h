// The K V sized products of the chunk backward. States are kept transposed ("vk", [v_pad][ld_k]):
// with value channels as rows every product is a plain one and none needs S^T.
#include <type_traits>

#include "cpu/chunk_plan.h"
#include "cpu/rows-inl.h"

#if defined(KDA_CPU_BWD_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_BWD_PRODUCTS_INL_H_
#undef KDA_CPU_BWD_PRODUCTS_INL_H_
#else
#define KDA_CPU_BWD_PRODUCTS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace kda::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct Matrix {
  float* at;
  std::size_t ld;
};

// Calls tile(vectors, column) for the widest tiles that fit, left to right.
template <class F>
HWY_INLINE void for_column_tiles(std::size_t width, const F& tile) {
  std::size_t at = 0;
  if constexpr (kManyRegisters) {
    for (; at + 4 * kLanes <= width; at += 4 * kLanes)
      tile(std::integral_constant<int, 4>(), at);
  }
  for (; at + 2 * kLanes <= width; at += 2 * kLanes)
    tile(std::integral_constant<int, 2>(), at);
  for (; at < width; at += kLanes)
    tile(std::integral_constant<int, 1>(), at);
}

template <int kVecs>
HWY_INLINE void multiply_columns(Matrix a, std::size_t rows, std::size_t depth, Matrix b,
                                 Matrix c) {
  std::size_t m = 0;
  if constexpr (kVecs == 1) {
    for (; m + 2 * kTileRows <= rows; m += 2 * kTileRows) {
      auto t = TallTile::zeros();
      t.add_product(a.at + m * a.ld, a.ld, b.at, b.ld, depth);
      t.write(c.at + m * c.ld, c.ld);
    }
  }
  for (; m < rows; m += kTileRows) {
    auto t = Tile<kVecs>::zeros();
    t.add_product(a.at + m * a.ld, a.ld, 1, b.at, b.ld, depth);
    t.write(c.at + m * c.ld, c.ld);
  }
}

// c = a b: a [rows][depth], b [depth][cols]; rows a multiple of 4, cols of a vector.
inline HWY_NOINLINE void multiply(Matrix a, std::size_t rows, std::size_t depth, Matrix b,
                                  std::size_t cols, Matrix c) {
  for_column_tiles(cols, [&](auto vecs, std::size_t n) HWY_ATTR {
    multiply_columns<vecs>(a, rows, depth, {b.at + n, b.ld}, {c.at + n, c.ld});
  });
}

template <int kVecs>
HWY_INLINE void advance_tile(const ChunkFactors& f, const float* u, std::size_t ld_u,
                             std::size_t at, const float* s, float* next) {
  const auto fade = Row<kVecs>::from(f.fade + at);
  const auto keep = Row<kVecs>::from(f.keep + at);
  auto t = Tile<kVecs>::from(s + at, f.ld_k);
  t.r0.fade(fade, keep);
  t.r1.fade(fade, keep);
  t.r2.fade(fade, keep);
  t.r3.fade(fade, keep);
  t.add_product(u, 1, ld_u, f.kh + at, f.ld_k, kChunk);
  t.write(next + at, f.ld_k);
}

// next = S diag(fade + keep) + U^T kh, states [v_rows][ld_k]. Row by row of S, so that states
// stream from the second-level cache while kh stays in the first.
inline HWY_NOINLINE void advance_state(const ChunkFactors& f, std::size_t width, const float* u,
                                       std::size_t ld_u, std::size_t v_rows, const float* s,
                                       float* next) {
  for (std::size_t v = 0; v < v_rows; v += kTileRows) {
    const float* from = s + v * f.ld_k;
    float* to = next + v * f.ld_k;
    for_column_tiles(width, [&](auto vecs, std::size_t at)
                                HWY_ATTR { advance_tile<vecs>(f, u + v, ld_u, at, from, to); });
  }
}

template <int kVecs>
HWY_INLINE void retreat_tile(const ChunkFactors& f, const float* left, std::size_t ld_left,
                             std::size_t at, const float* s, float* d, float* state_dot) {
  auto t = Tile<kVecs>::from(d + at, f.ld_k);
  auto dot = Row<kVecs>::from(state_dot + at);
  dot.add_product(t.r0, Row<kVecs>::from(s + at));
  dot.add_product(t.r1, Row<kVecs>::from(s + f.ld_k + at));
  dot.add_product(t.r2, Row<kVecs>::from(s + 2 * f.ld_k + at));
  dot.add_product(t.r3, Row<kVecs>::from(s + 3 * f.ld_k + at));
  dot.write(state_dot + at);
  const auto fade = Row<kVecs>::from(f.fade + at);
  const auto keep = Row<kVecs>::from(f.keep + at);
  t.r0.fade(fade, keep);
  t.r1.fade(fade, keep);
  t.r2.fade(fade, keep);
  t.r3.fade(fade, keep);
  t.add_product(left, 1, ld_left, f.kt + at, f.ld_k, 2 * kChunk);
  t.write(d + at, f.ld_k);
}

// The gradient of the state, from the chunk's end to its start:
//   D = D diag(fade + keep) + left^T [kt; qt],   left = [-beta X; scale do]  [32][.]
// and on the way state_dot_k = sum_v S_vk D_vk with D at the end.
inline HWY_NOINLINE void retreat_state(const ChunkFactors& f, std::size_t width, Matrix left,
                                       std::size_t v_rows, const float* s, float* d,
                                       float* state_dot) {
  fill_rows(state_dot, width, 1, width, 0.0F);
  for (std::size_t v = 0; v < v_rows; v += kTileRows) {
    const float* start = s + v * f.ld_k;
    float* rows = d + v * f.ld_k;
    for_column_tiles(width, [&](auto vecs, std::size_t at) HWY_ATTR {
      retreat_tile<vecs>(f, left.at + v, left.ld, at, start, rows, state_dot);
    });
  }
}

template <int kVecs>
HWY_INLINE void solve_columns(const ChunkFactors& f, Block v, Matrix w, Matrix u) {
  for (std::size_t i = 0; i < kChunk; i += kTileRows) {
    auto t = Tile<kVecs>::from(w.at + i * w.ld, w.ld);
    const float* vi = v.at + i * v.ld;
    const Vec one = splat(1.0F);
    t.r0.scaled_difference(one, Row<kVecs>::from(vi));
    t.r1.scaled_difference(one, Row<kVecs>::from(vi + v.ld));
    t.r2.scaled_difference(one, Row<kVecs>::from(vi + 2 * v.ld));
    t.r3.scaled_difference(one, Row<kVecs>::from(vi + 3 * v.ld));
    t.write(w.at + i * w.ld, w.ld);
    t.r0.scale(splat(f.beta[i]));
    t.r1.scale(splat(f.beta[i + 1]));
    t.r2.scale(splat(f.beta[i + 2]));
    t.r3.scale(splat(f.beta[i + 3]));
    t.add_product(f.lo_neg + i * kChunk, kChunk, 1, u.at, u.ld, i);
    const float* lo = f.lo_neg + i * kChunk + i;
    t.r1.add_product(splat(lo[kChunk]), t.r0);
    t.r2.add_product(splat(lo[2 * kChunk]), t.r0);
    t.r3.add_product(splat(lo[3 * kChunk]), t.r0);
    t.r2.add_product(splat(lo[2 * kChunk + 1]), t.r1);
    t.r3.add_product(splat(lo[3 * kChunk + 1]), t.r1);
    t.r3.add_product(splat(lo[3 * kChunk + 2]), t.r2);
    t.write(u.at + i * u.ld, u.ld);
  }
}

// w comes in as kt S and leaves as v - kt S; U = (I + lo)^-1 diag(beta) w.
inline HWY_NOINLINE void solve_forward(const ChunkFactors& f, std::size_t width, Block v, Matrix w,
                                       Matrix u) {
  std::size_t at = 0;
  for (; at + 2 * kLanes <= width; at += 2 * kLanes) {
    solve_columns<2>(f, {v.at + at, v.ld}, {w.at + at, w.ld}, {u.at + at, u.ld});
  }
  for (; at < width; at += kLanes) {
    solve_columns<1>(f, {v.at + at, v.ld}, {w.at + at, w.ld}, {u.at + at, u.ld});
  }
}

template <int kVecs>
HWY_INLINE void solve_back_columns(const ChunkFactors& f, Matrix d_out, Matrix d_u, Matrix x,
                                   Matrix minus_beta_x) {
  for (std::size_t i = kChunk; i > 0;) {
    i -= kTileRows;
    const std::size_t later = kChunk - kTileRows - i;
    auto t = Tile<kVecs>::from(d_u.at + i * d_u.ld, d_u.ld);
    const float* n = f.n + i * kChunk + i;
    t.add_product(n + kTileRows * kChunk, 1, kChunk, d_out.at + (i + kTileRows) * d_out.ld,
                  d_out.ld, later);
    const float* o = d_out.at + i * d_out.ld;
    auto right = Row<kVecs>::from(o + 3 * d_out.ld);
    t.r3.add_product(splat(n[3 * kChunk + 3]), right);
    t.r2.add_product(splat(n[3 * kChunk + 2]), right);
    t.r1.add_product(splat(n[3 * kChunk + 1]), right);
    t.r0.add_product(splat(n[3 * kChunk]), right);
    right = Row<kVecs>::from(o + 2 * d_out.ld);
    t.r2.add_product(splat(n[2 * kChunk + 2]), right);
    t.r1.add_product(splat(n[2 * kChunk + 1]), right);
    t.r0.add_product(splat(n[2 * kChunk]), right);
    right = Row<kVecs>::from(o + d_out.ld);
    t.r1.add_product(splat(n[kChunk + 1]), right);
    t.r0.add_product(splat(n[kChunk]), right);
    t.r0.add_product(splat(n[0]), Row<kVecs>::from(o));

    const float* lo = f.lo_neg + i * kChunk + i;
    t.add_product(lo + kTileRows * kChunk, 1, kChunk, x.at + (i + kTileRows) * x.ld, x.ld, later);
    t.r2.add_product(splat(lo[3 * kChunk + 2]), t.r3);
    t.r1.add_product(splat(lo[3 * kChunk + 1]), t.r3);
    t.r0.add_product(splat(lo[3 * kChunk]), t.r3);
    t.r1.add_product(splat(lo[2 * kChunk + 1]), t.r2);
    t.r0.add_product(splat(lo[2 * kChunk]), t.r2);
    t.r0.add_product(splat(lo[kChunk]), t.r1);
    t.write(x.at + i * x.ld, x.ld);
    t.r0.scale(splat(-f.beta[i]));
    t.r1.scale(splat(-f.beta[i + 1]));
    t.r2.scale(splat(-f.beta[i + 2]));
    t.r3.scale(splat(-f.beta[i + 3]));
    t.write(minus_beta_x.at + i * minus_beta_x.ld, minus_beta_x.ld);
  }
}

// X = (I + lo)^-T (d_u + n^T d_out), with d_u = kh D and d_out = scale do.
inline HWY_NOINLINE void solve_backward(const ChunkFactors& f, std::size_t width, Matrix d_out,
                                        Matrix d_u, Matrix x, Matrix minus_beta_x) {
  std::size_t at = 0;
  for (; at + 2 * kLanes <= width; at += 2 * kLanes) {
    solve_back_columns<2>(f, {d_out.at + at, d_out.ld}, {d_u.at + at, d_u.ld}, {x.at + at, x.ld},
                          {minus_beta_x.at + at, minus_beta_x.ld});
  }
  for (; at < width; at += kLanes) {
    solve_back_columns<1>(f, {d_out.at + at, d_out.ld}, {d_u.at + at, d_u.ld}, {x.at + at, x.ld},
                          {minus_beta_x.at + at, minus_beta_x.ld});
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
