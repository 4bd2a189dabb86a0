// Prep: one warp turns the raw k, q, g of a 16-token chunk into the factors that the update needs.
//
//   G = sum of log2 decays from the chunk's start (inclusive, f32)
//   kt = k 2^G, qt = q 2^G (rows), kb = k 2^-G (columns), decay = 2^(G of the last row)
//   N = qt kb^T (j <= i), Lo = beta_i kt kb^T (j < i), A = (I + Lo)^-1
// A bounded gate loses at most 7.22 log2 per token, 115.4 per chunk, so 2^-G is finite and no
// anchor is needed; kb also serves the state, which is multiplied by `decay` after the update.
// Chunks of a standard gate that lose more: prep_exact.cuh.
//
// A lane owns kK / 32 neighbouring channels of all 16 rows: the cumulative sum stays in the lane,
// the gate's parameters in registers, and factors replace raw values at the same address. Norms
// are the diagonals of k k^T and q q^T (exact bf16 products, f32 sums).
#pragma once

#include "cuda/hopper/gate.cuh"
#include "cuda/hopper/work.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/shared_vector.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/tile/element.cuh"

namespace kda::cuda::hopper {

inline constexpr float kMostDecay = -115.5F;  // log2, of a chunk, that 2^-G can take

// A lane's channels in a slot: bytes of row i.
struct LaneTiles {
  std::uint32_t rows;  // of k and, below, q
  std::uint32_t column;
  std::uint32_t piece;

  __device__ std::uint32_t at(int i) const { return i * kRowBytes + (piece ^ ((i & 7) << 4)); }
  __device__ std::uint32_t keys(int i) const { return rows + at(i); }
  __device__ std::uint32_t queries(int i) const { return rows + at(i) + kChunk * kRowBytes; }
  __device__ std::uint32_t columns(int i) const { return column + at(i); }
};
template <typename C>
__device__ inline LaneTiles lane_tiles(std::uint32_t slot, int lane) {
  constexpr int kChannels = C::kK / 32;
  constexpr int kLanesPerHalf = 64 / kChannels;
  const int half = lane / kLanesPerHalf;
  const int inside = lane % kLanesPerHalf * kChannels * 2;  // bytes
  const std::uint32_t rest = inside & 0x0f;
  return {slot + C::kRows + half * C::kRowsHalf + rest,
          slot + C::kColumns + half * C::kColumnsHalf + rest,
          static_cast<std::uint32_t>(inside & 0x70)};
}

// 1/|row| of q and k to the warp's scratch: lanes that hold the diagonal of x x^T. Like all of prep
// without kQueries: of k alone.
template <typename C, bool kQueries>
__device__ inline void row_norms(std::uint32_t slot, std::uint32_t scratch, int lane) {
  float sums[2][2][4] = {};  // [k, q][8 columns][element]; off the diagonal is not used
  const int row = lane % 16;
#pragma unroll
  for (int half = 0; half < C::kHalves; ++half) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const std::uint32_t at = slot + half * C::kRowsHalf + tile_offset(row, 2 * s + lane / 16);
#pragma unroll
      for (int x = 0; x < (kQueries ? 2 : 1); ++x) {
        std::uint32_t a[4];
        ptx::ldmatrix(a, at + x * kChunk * kRowBytes);
        ptx::mma_bf16(sums[x][0], a, a[0], a[2]);
        ptx::mma_bf16(sums[x][1], a, a[1], a[3]);
      }
    }
  }
  const int r = lane / 4;
  if (r / 2 == lane % 4) {
    const bool odd = r % 2 != 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float k = odd ? sums[0][half][2 * half + 1] : sums[0][half][2 * half];
      const float q = odd ? sums[1][half][2 * half + 1] : sums[1][half][2 * half];
      const float rstd_k = rsqrtf(k + kNormEps);
      const float rstd_q = rsqrtf(q + kNormEps);
      ptx::store_shared_f2(scratch + C::kNorms + (r + 8 * half) * 8, rstd_k, rstd_q);
    }
  }
}

// Whether the chunk loses too much for 2^-G (standard gates alone can): then what this leaves in
// the slot is of no use.
template <typename C, bool kNorm, bool kQueries>
__device__ inline bool make_factors(std::uint32_t slot, std::uint32_t small, std::uint32_t scratch,
                                    const GateLane<C::kK / 32>& gate, float q_scale, int rows,
                                    int lane) {
  constexpr int kChannels = C::kK / 32;
  const LaneTiles tiles = lane_tiles<C>(slot, lane);
  float sum[kChannels] = {};
  float up[kChannels];
  // The gate of a row is asked for before the row before it is stored: the compiler keeps the order
  // of shared accesses, and would wait for each row. The others come while the gate is computed.
  constexpr bool kAhead = C::kTuned;
  std::uint32_t gates[2][kChannels / 2];
  if constexpr (kAhead) ptx::load_shared_words(tiles.columns(0), gates[0]);
#pragma unroll 4
  for (int i = 0; i < kChunk; ++i) {
    std::uint32_t k[kChannels / 2];
    std::uint32_t q[kChannels / 2] = {};
    std::uint32_t(&g)[kChannels / 2] = gates[kAhead ? i % 2 : 0];
    if constexpr (!kAhead) ptx::load_shared_words(tiles.columns(i), g);
    ptx::load_shared_words(tiles.keys(i), k);
    if constexpr (kQueries) ptx::load_shared_words(tiles.queries(i), q);
    float2 rstd = make_float2(1.0F, 1.0F);  // k, q
    if constexpr (kNorm) rstd = ptx::load_shared_f2(scratch + C::kNorms + i * 8);
    if constexpr (kAhead) {
      if (i + 1 < kChunk) ptx::load_shared_words(tiles.columns(i + 1), gates[(i + 1) % 2]);
    }
    const float bound = i < rows ? gate.bound : 0.0F;
#pragma unroll
    for (int p = 0; p < kChannels / 2; ++p) {
      float down[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float x = e == 0 ? low_of(g[p]) : high_of(g[p]);
        const int c = 2 * p + e;
        sum[c] = fmaf(bound, gate_share<C::kStandard>(x, gate.slope, gate.offset[c]), sum[c]);
        up[c] = ptx::exp2_approx(sum[c]);
        down[e] = ptx::exp2_approx(-sum[c]);
      }
      // Unit vectors are not rounded on their own: each factor is rounded once.
      const float2 kn = make_float2(low_of(k[p]) * rstd.x, high_of(k[p]) * rstd.x);
      const float2 qn = make_float2(low_of(q[p]) * rstd.y, high_of(q[p]) * rstd.y);
      k[p] = pack_bf16(kn.x * up[2 * p], kn.y * up[2 * p + 1]);
      if constexpr (C::kReverse) {  // the forward scales its output instead
        q[p] = pack_bf16(qn.x * (q_scale * up[2 * p]), qn.y * (q_scale * up[2 * p + 1]));
      } else {
        q[p] = pack_bf16(qn.x * up[2 * p], qn.y * up[2 * p + 1]);
      }
      g[p] = pack_bf16(kn.x * down[0], kn.y * down[1]);
    }
    ptx::store_shared_words(tiles.keys(i), k);
    if constexpr (kQueries) ptx::store_shared_words(tiles.queries(i), q);
    ptx::store_shared_words(tiles.columns(i), g);
  }
  const std::uint32_t decay = small + C::kDecay + lane * kChannels * 4;
  if constexpr (kChannels == 4) {
    ptx::store_shared_f4(decay, up[0], up[1], up[2], up[3]);
  } else {
    ptx::store_shared_f2(decay, up[0], up[1]);
  }
  if constexpr (!C::kStandard) return false;
  bool too_much = false;
#pragma unroll
  for (int c = 0; c < kChannels; ++c)
    too_much |= !(sum[c] >= kMostDecay);
  return __any_sync(0xffffffffU, too_much);
}

// N to its place, Lo transposed to the scratch. Selection, not multiplication: what is above the
// diagonal can be as large as 2^115.
template <typename C, bool kQueries>
__device__ inline void make_products(std::uint32_t slot, std::uint32_t small, std::uint32_t scratch,
                                     float beta, int lane) {
  float n[2][4] = {};
  float lo[2][4] = {};
  // kTuned: columns in such an order that the registers of an operand are neighbours; two
  // pieces on by an exclusive or, as tiles are aligned.
  constexpr bool kTuned = C::kTuned;
  const std::uint32_t rows_at = slot + C::kRows + tile_offset(lane % 16, lane / 16);
  const std::uint32_t columns_at =
      slot + C::kColumns + tile_offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
  for (int half = 0; half < C::kHalves; ++half) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const std::uint32_t on = 32 * static_cast<std::uint32_t>(s);
      const std::uint32_t at = tile_offset(lane % 16, 2 * s + lane / 16);
      const std::uint32_t row_at =
          (kTuned ? rows_at ^ on : slot + C::kRows + at) + half * C::kRowsHalf;
      std::uint32_t k[4];
      std::uint32_t q[4];
      std::uint32_t b[4];
      ptx::ldmatrix(k, row_at);
      if constexpr (kQueries) ptx::ldmatrix(q, row_at + kChunk * kRowBytes);
      ptx::ldmatrix(b,
                    (kTuned ? columns_at ^ on : slot + C::kColumns + at) + half * C::kColumnsHalf);
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        const std::uint32_t b0 = kTuned ? b[2 * t] : b[t];
        const std::uint32_t b1 = kTuned ? b[2 * t + 1] : b[2 + t];
        ptx::mma_bf16(lo[t], k, b0, b1);
        if constexpr (kQueries) ptx::mma_bf16(n[t], q, b0, b1);
      }
    }
  }
  const int r = lane / 4;
  const int c2 = lane % 4 * 2;
  const float beta_of_row[2] = {__shfl_sync(0xffffffffU, beta, r),
                                __shfl_sync(0xffffffffU, beta, r + 8)};
#pragma unroll
  for (int t = 0; t < 2; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = r + 8 * (e / 2);
      const int j = 8 * t + c2 + e % 2;
      if (i < j) n[t][e] = 0.0F;
      const float x = i > j ? beta_of_row[e / 2] * lo[t][e] : 0.0F;
      ptx::store_shared_f(scratch + (j * C::kLoStride + i) * 4, x);
    }
#pragma unroll
    for (int block = 0; block < (kQueries ? 2 : 0); ++block) {
      const std::uint32_t pair = pack_bf16(n[t][2 * block], n[t][2 * block + 1]);
      if constexpr (C::kReverse) {
        ptx::store_shared_pair(small + C::kN + (2 * t + block) * 128 + lane * 4,
                               ptx::movmatrix(pair));
      } else {
        ptx::store_shared_pair(small + C::kN + (2 * block + t) * 128 + lane * 4, pair);
      }
    }
  }
}

// A = (I + Lo)^-1 by substitution in f32; lane j % 16 has column j. Stored as it is, or transposed
// for the reverse scan; beta beside it.
template <typename C>
__device__ inline void invert(std::uint32_t small, std::uint32_t scratch, float beta, int lane) {
  const int j = lane % 16;
  float x[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i)
    x[i] = i == j ? 1.0F : 0.0F;
#pragma unroll
  for (int m = 0; m < kChunk - 1; ++m) {
#pragma unroll
    for (int four = (m + 1) / 4; four < 4; ++four) {
      const float4 lo = ptx::load_shared_f4(scratch + (m * C::kLoStride + 4 * four) * 4);
      const float l[4] = {lo.x, lo.y, lo.z, lo.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = 4 * four + e;
        if (i > m) x[i] = fmaf(-l[e], x[m], x[i]);
      }
    }
  }
  if (lane < kChunk) ptx::store_shared_f(small + C::kBeta + j * 4, beta);
  if constexpr (C::kReverse) {  // column j is row j of A^T
    if (lane < kChunk) {
      const std::uint32_t to = small + C::kA + (j / 8) * 256 + (j % 8) * 16;
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        const float* y = x + 8 * block;
        ptx::store_shared(to + block * 128,
                          make_uint4(pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]),
                                     pack_bf16(y[4], y[5]), pack_bf16(y[6], y[7])));
      }
    }
    return;
  }
  // The first half of the warp stores rows 0 .. 7, the second rows 8 .. 15.
  const bool upper = lane < 16;
  const std::uint32_t to = small + C::kA + (upper ? 0 : 256) + (j / 8) * 128 + (j % 8) * 2;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const __nv_bfloat16 rounded = __float2bfloat16_rn(upper ? x[i] : x[i + 8]);
    ptx::store_shared_half(to + i * 16, __bfloat16_as_ushort(rounded));
  }
}

}  // namespace kda::cuda::hopper
