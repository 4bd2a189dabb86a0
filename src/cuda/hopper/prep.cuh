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

// The place of row `i` below the one at `at`, a multiple of four of the same tile, for i < 4: with
// `i` known an exclusive or and an addition.
__device__ inline std::uint32_t row_below(std::uint32_t at, int i) {
  return (at ^ (static_cast<std::uint32_t>(i) << 4)) + i * kRowBytes;
}
__device__ inline std::uint32_t four_below(std::uint32_t at) { return (at ^ 64) + 4 * kRowBytes; }

// Where a lane's row of operands of step `s` (16 channels) lies, from that of step 0.
template <typename C>
__device__ inline std::uint32_t operand_at(std::uint32_t first, int s, std::uint32_t half_bytes) {
  return (first ^ (32U * (s % 4))) + s / 4 * half_bytes;
}

// 1/|row| of q and k to the warp's scratch: lanes that hold the diagonal of x x^T. Like all of prep
// without kQueries: of k alone.
template <typename C, bool kQueries>
__device__ inline void row_norms(std::uint32_t slot, std::uint32_t scratch, int lane) {
  constexpr int kKinds = kQueries ? 2 : 1;
  constexpr int kSteps = C::kK / 16;
  constexpr int kAhead = 2;  // loads are sent for before the products of the steps before
  float sums[2][2][4] = {};  // [k, q][8 columns][element]; off the diagonal is not used
  const std::uint32_t first = slot + C::kRows + tile_offset(lane % 16, lane / 16);
  std::uint32_t a[kAhead + 1][2][4];
  const auto send = [&](int s) {
    const std::uint32_t at = operand_at<C>(first, s, C::kRowsHalf);
#pragma unroll
    for (int x = 0; x < kKinds; ++x)
      ptx::ldmatrix(a[s % (kAhead + 1)][x], at + x * kChunk * kRowBytes);
  };
#pragma unroll
  for (int s = 0; s < kAhead; ++s)
    send(s);
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    if (s + kAhead < kSteps) send(s + kAhead);
#pragma unroll
    for (int x = 0; x < kKinds; ++x) {
      const auto& rows = a[s % (kAhead + 1)][x];
      ptx::mma_bf16(sums[x][0], rows, rows[0], rows[2]);
      ptx::mma_bf16(sums[x][1], rows, rows[1], rows[3]);
    }
  }
  const int r = lane / 4;
  const bool odd = r % 2 != 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float k = odd ? sums[0][half][2 * half + 1] : sums[0][half][2 * half];
    const float q = odd ? sums[1][half][2 * half + 1] : sums[1][half][2 * half];
    const float rstd_k = ptx::rsqrt_approx(k + kNormEps);
    const float rstd_q = kQueries ? ptx::rsqrt_approx(q + kNormEps) : 0.0F;
    ptx::store_shared_f2_if(scratch + C::kNorms + (r + 8 * half) * 8, rstd_k, rstd_q,
                            r / 2 == lane % 4);
  }
}

// Whether the chunk loses too much for 2^-G (standard gates alone can): then what this leaves in
// the slot is of no use.
//
// Two rows at a time, and each stage of both before the next one: a row for itself is a chain of
// loads and special functions that waits for every link.
template <typename C, bool kNorm, bool kQueries>
__device__ inline bool make_factors(std::uint32_t slot, std::uint32_t small, std::uint32_t scratch,
                                    const GateLane<C::kK / 32>& gate, float q_scale, int rows,
                                    int lane) {
  constexpr int kChannels = C::kK / 32;
  constexpr int kWords = kChannels / 2;
  const LaneTiles tiles = lane_tiles<C>(slot, lane);
  std::uint32_t rows_at = tiles.keys(0);
  std::uint32_t columns_at = tiles.columns(0);
  std::uint32_t norms_at = scratch + C::kNorms;
  int left = rows;
  float sum[kChannels] = {};
  float up[2][kChannels];
  // The gate of two rows is asked for before the two above are stored: the compiler keeps the order
  // of shared accesses. The others come while the gate is computed.
  std::uint32_t g[2][kWords];
#pragma unroll
  for (int e = 0; e < 2; ++e)
    ptx::load_shared_words(row_below(columns_at, e), g[e]);
#pragma unroll 1
  for (int four = 0; four < kChunk; four += 4) {
#pragma unroll
    for (int pair = 0; pair < 4; pair += 2) {
      std::uint32_t k[2][kWords];
      std::uint32_t q[2][kWords] = {};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const std::uint32_t at = row_below(rows_at, pair + e);
        ptx::load_shared_words(at, k[e]);
        if constexpr (kQueries) ptx::load_shared_words(at + kChunk * kRowBytes, q[e]);
      }
      float4 norms = make_float4(1.0F, 1.0F, 1.0F, 1.0F);  // k, q of both
      if constexpr (kNorm) norms = ptx::load_shared_f4(norms_at + pair * 8);
      float share[2][kChannels];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          const float x = c % 2 == 0 ? low_of(g[e][c / 2]) : high_of(g[e][c / 2]);
          share[e][c] = gate_share<C::kStandard>(x, gate.slope, gate.offset[c]);
        }
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (pair == 0) {
          ptx::load_shared_words(row_below(columns_at, 2 + e), g[e]);
        } else if (four + 4 < kChunk) {
          ptx::load_shared_words(row_below(four_below(columns_at), e), g[e]);
        }
      }
      float down[2][kChannels];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float bound = pair + e < left ? gate.bound : 0.0F;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          sum[c] = fmaf(bound, share[e][c], sum[c]);
          up[e][c] = ptx::exp2_approx(sum[c]);
          down[e][c] = ptx::exp2_approx(-sum[c]);
        }
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float rstd_k = e == 0 ? norms.x : norms.z;
        const float rstd_q = e == 0 ? norms.y : norms.w;
        std::uint32_t b[kWords];
#pragma unroll
        for (int p = 0; p < kWords; ++p) {
          const float up0 = up[e][2 * p];
          const float up1 = up[e][2 * p + 1];
          // Unit vectors are not rounded on their own: each factor is rounded once.
          const float2 kn = make_float2(low_of(k[e][p]) * rstd_k, high_of(k[e][p]) * rstd_k);
          const float2 qn = make_float2(low_of(q[e][p]) * rstd_q, high_of(q[e][p]) * rstd_q);
          k[e][p] = pack_bf16(kn.x * up0, kn.y * up1);
          if constexpr (C::kReverse) {  // the forward scales its output instead
            q[e][p] = pack_bf16(qn.x * (q_scale * up0), qn.y * (q_scale * up1));
          } else {
            q[e][p] = pack_bf16(qn.x * up0, qn.y * up1);
          }
          b[p] = pack_bf16(kn.x * down[e][2 * p], kn.y * down[e][2 * p + 1]);
        }
        const std::uint32_t at = row_below(rows_at, pair + e);
        ptx::store_shared_words(at, k[e]);
        if constexpr (kQueries) ptx::store_shared_words(at + kChunk * kRowBytes, q[e]);
        ptx::store_shared_words(row_below(columns_at, pair + e), b);
      }
    }
    rows_at = four_below(rows_at);
    columns_at = four_below(columns_at);
    norms_at += 4 * 8;
    left -= 4;
  }
  const std::uint32_t decay = small + C::kDecay + pair_offset<C>(lane * kChannels);
#pragma unroll
  for (int p = 0; p < kWords; ++p)
    ptx::store_shared_f2(decay + p * C::kPairStride, up[1][2 * p], up[1][2 * p + 1]);
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
  constexpr int kSteps = C::kK / 16;
  constexpr int kAhead = 1;
  float n[2][4] = {};
  float lo[2][4] = {};
  // Columns in such an order that the registers of an operand are neighbours.
  const std::uint32_t rows_at = slot + C::kRows + tile_offset(lane % 16, lane / 16);
  const std::uint32_t columns_at =
      slot + C::kColumns + tile_offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  std::uint32_t k[kAhead + 1][4];
  std::uint32_t q[kAhead + 1][4];
  std::uint32_t b[kAhead + 1][4];
  const auto send = [&](int s) {
    const int to = s % (kAhead + 1);
    const std::uint32_t row_at = operand_at<C>(rows_at, s, C::kRowsHalf);
    ptx::ldmatrix(b[to], operand_at<C>(columns_at, s, C::kColumnsHalf));
    ptx::ldmatrix(k[to], row_at);
    if constexpr (kQueries) ptx::ldmatrix(q[to], row_at + kChunk * kRowBytes);
  };
#pragma unroll
  for (int s = 0; s < kAhead; ++s)
    send(s);
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    if (s + kAhead < kSteps) send(s + kAhead);
    const int at = s % (kAhead + 1);
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      ptx::mma_bf16(lo[t], k[at], b[at][2 * t], b[at][2 * t + 1]);
      if constexpr (kQueries) ptx::mma_bf16(n[t], q[at], b[at][2 * t], b[at][2 * t + 1]);
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
      // What the inverse does not read need not be right; of a block above the diagonal, nothing.
      if (t <= e / 2)
        ptx::store_shared_f(scratch + (j * C::kLoStride + i) * 4, beta_of_row[e / 2] * lo[t][e]);
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

// The order in which the inverse takes Lo transposed, four of row `m` from column `first` on: to
// rows 0 .. 7; to rows 8 .. 15 from those (each half of the warp has four of them); among these.
struct LoPieces {
  static constexpr int kCount = 28;
  static constexpr int kLower = 18;  // where the last kind begins
  int m[kCount] = {};
  int first[kCount] = {};

  constexpr LoPieces() {
    int n = 0;
    for (int row = 0; row < kChunk - 1; ++row) {
      const int end = row < 8 ? 2 : 4;
      for (int four = (row + 1) / 4; four < end; ++four, ++n) {
        m[n] = row;
        first[n] = 4 * four;
      }
      if (row < 8) {
        m[n] = row;
        first[n++] = 8;
      }
    }
  }
};

// A = (I + Lo)^-1 by substitution in f32; lane j % 16 has column j. Stored as it is, or transposed
// for the reverse scan; beta beside it.
template <typename C>
__device__ inline void invert(std::uint32_t small, std::uint32_t scratch, float beta, int lane) {
  constexpr LoPieces kPieces;
  constexpr int kAhead = 6;  // loads under way
  const int j = lane % 16;
  const int part = lane / 16 * 4;
  float x[kChunk];
  float y[4];  // rows 8 + part ..
#pragma unroll
  for (int i = 0; i < 8; ++i)
    x[i] = ptx::one_if_equal(static_cast<float>(j), static_cast<float>(i));
#pragma unroll
  for (int e = 0; e < 4; ++e)
    y[e] = ptx::one_if_equal(static_cast<float>(j - part), static_cast<float>(8 + e));
  float4 lo[kAhead];
  const auto is_lower = [&](int n) { return kPieces.m[n] < 8 && kPieces.first[n] == 8; };
  const std::uint32_t lower = scratch + part * 4;
  const auto send = [&](int n) {
    lo[n % kAhead] = ptx::load_shared_f4((is_lower(n) ? lower : scratch) +
                                         (kPieces.m[n] * C::kLoStride + kPieces.first[n]) * 4);
  };
#pragma unroll
  for (int n = 0; n < kAhead; ++n)
    send(n);
#pragma unroll
  for (int n = 0; n < LoPieces::kCount; ++n) {
    if (n == LoPieces::kLower) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        x[8 + e] = __shfl_sync(0xffffffffU, y[e], j);
        x[12 + e] = __shfl_sync(0xffffffffU, y[e], j + 16);
      }
    }
    const float4 four = lo[n % kAhead];
    const float l[4] = {four.x, four.y, four.z, four.w};
    if (n + kAhead < LoPieces::kCount) send(n + kAhead);
    const int m = kPieces.m[n];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = kPieces.first[n] + e;
      if (is_lower(n)) {
        y[e] = fmaf(-l[e], x[m], y[e]);
      } else if (i > m) {
        x[i] = fmaf(-l[e], x[m], x[i]);
      }
    }
  }
  if (lane < kChunk) ptx::store_shared_f(small + C::kBeta + pair_offset<C>(j), beta);
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
