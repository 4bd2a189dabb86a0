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
inline HWY_NOINLINE void solve_tile(const ChunkFactors& f, std::size_t k, std::size_t rows, Block v,
                                    const float* s, std::size_t ld_s, float* u, std::size_t ld_u) {
  for (std::size_t i = 0; i < rows; i += kTileRows) {
    auto t = Tile<kVecs>::zeros();
    t.add_product(f.kt + i * f.ld_k, f.ld_k, 1, s, ld_s, k);
    const float* vi = v.at + i * v.ld;
    t.r0.scaled_difference(splat(f.beta[i]), Row<kVecs>::from(vi));
    t.r1.scaled_difference(splat(f.beta[i + 1]), Row<kVecs>::from(vi + v.ld));
    t.r2.scaled_difference(splat(f.beta[i + 2]), Row<kVecs>::from(vi + 2 * v.ld));
    t.r3.scaled_difference(splat(f.beta[i + 3]), Row<kVecs>::from(vi + 3 * v.ld));
    t.add_product(f.lo_neg + i * kChunk, kChunk, 1, u, ld_u, i);
    const float* lo = f.lo_neg + i * kChunk + i;
    t.r1.add_product(splat(lo[kChunk]), t.r0);
    t.r2.add_product(splat(lo[2 * kChunk]), t.r0);
    t.r3.add_product(splat(lo[3 * kChunk]), t.r0);
    t.r2.add_product(splat(lo[2 * kChunk + 1]), t.r1);
    t.r3.add_product(splat(lo[3 * kChunk + 1]), t.r1);
    t.r3.add_product(splat(lo[3 * kChunk + 2]), t.r2);
    t.write(u + i * ld_u, ld_u);
  }
}

// o = scale (qt S + n U). Later tokens of the chunk are not even multiplied by zero: an infinity
// in one of them must not reach this row.
template <int kVecs>
inline HWY_NOINLINE void output_tile(const ChunkFactors& f, std::size_t k, std::size_t rows,
                                     float scale, const float* s, std::size_t ld_s, const float* u,
                                     std::size_t ld_u, float* o, std::size_t ld_o) {
  for (std::size_t i = 0; i < rows; i += kTileRows) {
    auto t = Tile<kVecs>::zeros();
    t.add_product(f.qt + i * f.ld_k, f.ld_k, 1, s, ld_s, k);
    t.add_product(f.n + i * kChunk, kChunk, 1, u, ld_u, i);
    const float* n = f.n + i * kChunk + i;
    auto right = Row<kVecs>::from(u + i * ld_u);
    t.r0.add_product(splat(n[0]), right);
    t.r1.add_product(splat(n[kChunk]), right);
    t.r2.add_product(splat(n[2 * kChunk]), right);
    t.r3.add_product(splat(n[3 * kChunk]), right);
    right = Row<kVecs>::from(u + (i + 1) * ld_u);
    t.r1.add_product(splat(n[kChunk + 1]), right);
    t.r2.add_product(splat(n[2 * kChunk + 1]), right);
    t.r3.add_product(splat(n[3 * kChunk + 1]), right);
    right = Row<kVecs>::from(u + (i + 2) * ld_u);
    t.r2.add_product(splat(n[2 * kChunk + 2]), right);
    t.r3.add_product(splat(n[3 * kChunk + 2]), right);
    t.r3.add_product(splat(n[3 * kChunk + 3]), Row<kVecs>::from(u + (i + 3) * ld_u));
    const Vec factor = splat(scale);
    t.r0.scale(factor);
    t.r1.scale(factor);
    t.r2.scale(factor);
    t.r3.scale(factor);
    t.write(o + i * ld_o, ld_o);
  }
}

// S = diag(fade + keep) S + kh^T U over `k_rows` rows (K rounded up to the tile; kh is 0 beyond K).
template <int kVecs>
inline HWY_NOINLINE void update_tile(const ChunkFactors& f, std::size_t k_rows, std::size_t rows,
                                     const float* u, std::size_t ld_u, float* s, std::size_t ld_s) {
  for (std::size_t d = 0; d < k_rows; d += kTileRows) {
    auto t = Tile<kVecs>::from(s + d * ld_s, ld_s);
    t.r0.fade(splat(f.fade[d]), splat(f.keep[d]));
    t.r1.fade(splat(f.fade[d + 1]), splat(f.keep[d + 1]));
    t.r2.fade(splat(f.fade[d + 2]), splat(f.keep[d + 2]));
    t.r3.fade(splat(f.fade[d + 3]), splat(f.keep[d + 3]));
    t.add_product(f.kh + d, 1, f.ld_k, u, ld_u, rows);
    t.write(s + d * ld_s, ld_s);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
