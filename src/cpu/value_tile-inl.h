// The value side of one 16-token chunk, one tile of value channels at a time: every column of S is
// independent of the others, so a tile of S stays in the first-level cache through all products.
#include "cpu/chunk_plan.h"
#include "cpu/simd-inl.h"

#if defined(KDA_CPU_VALUE_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_VALUE_TILE_INL_H_
#undef KDA_CPU_VALUE_TILE_INL_H_
#else
#define KDA_CPU_VALUE_TILE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace kda::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// U = (I + lo)^-1 diag(beta) (v - kt S), rows 0..rows rounded up to the tile.
template <int kVecs>
HWY_INLINE void solve_tile(const ChunkFactors& f, std::size_t k, std::size_t rows, Block v,
                           const float* s, std::size_t ld_s, float* u, std::size_t ld_u) {
  for (std::size_t i = 0; i < rows; i += kTileRows) {
    Tile<kTileRows, kVecs> t;
    t.clear();
    t.multiply_add(f.kt + i * f.ld_k, f.ld_k, 1, s, ld_s, k);
    for (std::size_t r = 0; r < kTileRows; ++r) {
      const Vec beta = splat(f.beta[i + r]);
      for (std::size_t n = 0; n < kVecs; ++n) {
        t.at[r][n] = hn::Mul(beta, hn::Sub(load(v.at + (i + r) * v.ld + n * kLanes), t.at[r][n]));
      }
    }
    t.multiply_add(f.lo_neg + i * kChunk, kChunk, 1, u, ld_u, i);
    for (std::size_t r = 1; r < kTileRows; ++r) {
      for (std::size_t c = 0; c < r; ++c) {
        const Vec lo = splat(f.lo_neg[(i + r) * kChunk + i + c]);
        for (std::size_t n = 0; n < kVecs; ++n)
          t.at[r][n] = hn::MulAdd(lo, t.at[c][n], t.at[r][n]);
      }
    }
    t.write(u + i * ld_u, ld_u);
  }
}

// o = scale (qt S + n U)
template <int kVecs>
HWY_INLINE void output_tile(const ChunkFactors& f, std::size_t k, std::size_t rows, float scale,
                            const float* s, std::size_t ld_s, const float* u, std::size_t ld_u,
                            float* o, std::size_t ld_o) {
  for (std::size_t i = 0; i < rows; i += kTileRows) {
    Tile<kTileRows, kVecs> t;
    t.clear();
    t.multiply_add(f.qt + i * f.ld_k, f.ld_k, 1, s, ld_s, k);
    t.multiply_add(f.n + i * kChunk, kChunk, 1, u, ld_u, i);
    for (std::size_t c = 0; c < kTileRows; ++c) {
      for (std::size_t n = 0; n < kVecs; ++n) {
        const Vec right = load(u + (i + c) * ld_u + n * kLanes);
        for (std::size_t r = c; r < kTileRows; ++r) {
          t.at[r][n] = hn::MulAdd(splat(f.n[(i + r) * kChunk + i + c]), right, t.at[r][n]);
        }
      }
    }
    for (std::size_t r = 0; r < kTileRows; ++r) {
      for (std::size_t n = 0; n < kVecs; ++n)
        t.at[r][n] = hn::Mul(t.at[r][n], splat(scale));
    }
    t.write(o + i * ld_o, ld_o);
  }
}

// S = diag(decay) S + kh^T U over `k_rows` rows (K rounded up to the tile; kh is 0 beyond K).
template <int kVecs>
HWY_INLINE void update_tile(const ChunkFactors& f, std::size_t k_rows, std::size_t rows,
                            const float* u, std::size_t ld_u, float* s, std::size_t ld_s) {
  for (std::size_t d = 0; d < k_rows; d += kTileRows) {
    Tile<kTileRows, kVecs> t;
    for (std::size_t r = 0; r < kTileRows; ++r) {
      const Vec decay = splat(f.decay[d + r]);
      for (std::size_t n = 0; n < kVecs; ++n) {
        t.at[r][n] = hn::Mul(decay, load(s + (d + r) * ld_s + n * kLanes));
      }
    }
    t.multiply_add(f.kh + d, 1, f.ld_k, u, ld_u, rows);
    t.write(s + d * ld_s, ld_s);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
