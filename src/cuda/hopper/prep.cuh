// Prep: one warp turns the raw k, q, g of a 16-token chunk into the factors that the update needs.
//
//   G = sum of log2 decays from the chunk's start (inclusive, f32)
//   kt = k 2^G, qt = q 2^G (rows), kb = k 2^-G (columns), decay = 2^(G of the last row)
//   N = qt kb^T (j <= i), Lo = beta_i kt kb^T (j < i), A = (I + Lo)^-1, stored as (A - I) diag(beta)
// A bounded gate loses at most 7.22 log2 per token, 115.4 per chunk, so 2^-G is finite and no
// anchor is needed; kb also serves the state, which is multiplied by `decay` after the update.
//
// A lane owns kK / 32 neighbouring channels of all 16 rows: the cumulative sum stays in the lane,
// the gate's parameters in registers, and factors replace raw values at the same address. Norms
// are the diagonals of k k^T and q q^T (exact bf16 products, f32 sums).
#pragma once

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

// What a lane needs of the gate: decay = `bound` sigmoid(x rate + bias), in log2, as
// bound / (1 + 2^(slope x + offset)); slope = -log2(e) e^A, offset = slope * dt_bias.
template <int kChannels>
struct GateLane {
  float slope = 0.0F;
  float bound = 0.0F;
  float offset[kChannels];
};

template <int kChannels>
__device__ inline GateLane<kChannels> gate_lane(const Gate& gate, int hv, int d, int K) {
  GateLane<kChannels> g;
  g.slope = -kLog2E * (gate.a_log != nullptr ? expf(gate.a_log[hv]) : 1.0F);
  g.bound = kLog2E * gate.lower_bound;
#pragma unroll
  for (int e = 0; e < kChannels; ++e) {
    g.offset[e] = gate.dt_bias != nullptr
                      ? g.slope * gate.dt_bias[static_cast<std::int64_t>(hv) * K + d + e]
                      : 0.0F;
  }
  return g;
}

// 1/|row| of q and k to the warp's scratch: lanes that hold the diagonal of x x^T.
template <typename C>
__device__ inline void row_norms(std::uint32_t slot, std::uint32_t scratch, int lane) {
  float sums[2][2][4] = {};  // [k, q][8 columns][element]; off the diagonal is not used
  const int row = lane % 16;
#pragma unroll
  for (int half = 0; half < C::kHalves; ++half) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const std::uint32_t at = slot + half * C::kRowsHalf + tile_offset(row, 2 * s + lane / 16);
#pragma unroll
      for (int x = 0; x < 2; ++x) {
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

template <typename C, bool kNorm>
__device__ inline void make_factors(std::uint32_t slot, std::uint32_t small, std::uint32_t scratch,
                                    const GateLane<C::kK / 32>& gate, float q_scale, int rows,
                                    int lane) {
  constexpr int kChannels = C::kK / 32;
  constexpr int kLanesPerHalf = 64 / kChannels;
  const int half = lane / kLanesPerHalf;
  const int inside = lane % kLanesPerHalf * kChannels * 2;  // bytes
  const std::uint32_t piece = inside & 0x70;
  const std::uint32_t rest = inside & 0x0f;
  const std::uint32_t row_tile = slot + C::kRows + half * C::kRowsHalf + rest;
  const std::uint32_t column_tile = slot + C::kColumns + half * C::kColumnsHalf + rest;
  float sum[kChannels] = {};
  float up[kChannels];
#pragma unroll 4
  for (int i = 0; i < kChunk; ++i) {
    const std::uint32_t at = i * kRowBytes + (piece ^ ((i & 7) << 4));
    std::uint32_t k[kChannels / 2];
    std::uint32_t q[kChannels / 2];
    std::uint32_t g[kChannels / 2];
    ptx::load_shared_words(column_tile + at, g);
    ptx::load_shared_words(row_tile + at, k);
    ptx::load_shared_words(row_tile + at + kChunk * kRowBytes, q);
    float2 rstd = make_float2(1.0F, 1.0F);  // k, q
    if constexpr (kNorm) rstd = ptx::load_shared_f2(scratch + C::kNorms + i * 8);
    const float bound = i < rows ? gate.bound : 0.0F;
#pragma unroll
    for (int p = 0; p < kChannels / 2; ++p) {
      float down[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float x = e == 0 ? low_of(g[p]) : high_of(g[p]);
        const int c = 2 * p + e;
        const float z = ptx::exp2_approx(fmaf(x, gate.slope, gate.offset[c]));
        sum[c] = fmaf(bound, ptx::rcp_approx(1.0F + z), sum[c]);
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
    ptx::store_shared_words(row_tile + at, k);
    ptx::store_shared_words(row_tile + at + kChunk * kRowBytes, q);
    ptx::store_shared_words(column_tile + at, g);
  }
  const std::uint32_t decay = small + C::kDecay + lane * kChannels * 4;
  if constexpr (kChannels == 4) {
    ptx::store_shared_f4(decay, up[0], up[1], up[2], up[3]);
  } else {
    ptx::store_shared_f2(decay, up[0], up[1]);
  }
}

// N to its place, Lo transposed to the scratch. Selection, not multiplication: what is above the
// diagonal can be as large as 2^115.
template <typename C>
__device__ inline void make_products(std::uint32_t slot, std::uint32_t small, std::uint32_t scratch,
                                     float beta, int lane) {
  float n[2][4] = {};
  float lo[2][4] = {};
  const int row = lane % 16;
#pragma unroll
  for (int half = 0; half < C::kHalves; ++half) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const std::uint32_t at = tile_offset(row, 2 * s + lane / 16);
      std::uint32_t k[4];
      std::uint32_t q[4];
      std::uint32_t b[4];
      ptx::ldmatrix(k, slot + C::kRows + half * C::kRowsHalf + at);
      ptx::ldmatrix(q, slot + C::kRows + half * C::kRowsHalf + kChunk * kRowBytes + at);
      ptx::ldmatrix(b, slot + C::kColumns + half * C::kColumnsHalf + at);
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        ptx::mma_bf16(lo[t], k, b[t], b[2 + t]);
        ptx::mma_bf16(n[t], q, b[t], b[2 + t]);
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
    for (int block = 0; block < 2; ++block) {
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

// A = (I + Lo)^-1 by substitution in f32; lane j % 16 has column j. Stored as (A - I) diag(beta), so
// that the update can keep the unit part in f32, or as A^T for the reverse scan; beta beside it.
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
    const float value = j % 8 == i && (j < 8) == upper ? 0.0F : (upper ? x[i] : x[i + 8]) * beta;
    const __nv_bfloat16 rounded = __float2bfloat16_rn(value);
    ptx::store_shared_half(to + i * 16, __bfloat16_as_ushort(rounded));
  }
}

template <typename C, bool kNorm>
__device__ inline void prep_role(const ChunkArgs& args, std::uint32_t smem, int warp, int lane,
                                 int num_items) {
  constexpr int kChannels = C::kK / 32;
  const std::uint32_t scratch = smem + C::kScratch + warp * C::kScratchBytes;
  RingPosition<C::kSlots> at;
  at.advance(warp);
  int step = warp;  // of the current item; past its end: of a later one
  for (int item = static_cast<int>(blockIdx.x); item < num_items; item = next_item(item)) {
    const Work w = work_at<C>(args, item);
    if (step < w.num_chunks) {
      const GateLane<kChannels> gate =
          gate_lane<kChannels>(args.in.gate, w.hv, lane * kChannels, C::kK);
      const Tensor& beta_in = args.in.beta;
      const std::int64_t beta_at = w.span.row * beta_in.s0 + w.hv * beta_in.s2;
      for (; step < w.num_chunks; step += C::kPrepWarps) {
        const int chunk = chunk_of_step<C>(w, step);
        const int rows = chunk_rows(w, chunk);
        const int j = lane % 16;
        const std::int64_t t = w.span.begin + static_cast<std::int64_t>(chunk) * kChunk + j;
        const float beta = j < rows ? beta_of(args.in, beta_at + t * beta_in.s1) : 0.0F;
        const std::uint32_t slot = smem + at.slot * C::kSlotBytes;
        const std::uint32_t small = smem + C::kSmall + at.slot * C::kSmallBytes;
        ptx::mbarrier_wait(loaded_barrier<C>(smem, at.slot), at.parity);
        if constexpr (kNorm) {
          row_norms<C>(slot, scratch, lane);
          __syncwarp();  // norms before their readers; raw rows read before they are replaced
        }
        make_factors<C, kNorm>(slot, small, scratch, gate, args.in.scale, rows, lane);
        __syncwarp();  // factors before the products
        make_products<C>(slot, small, scratch, beta, lane);
        __syncwarp();  // Lo before the inverse
        invert<C>(small, scratch, beta, lane);
        ptx::fence_async_shared();
        __syncwarp();  // every lane's stores and fence before the arrival
        ptx::warp_arrive(ready_barrier<C>(smem, at.slot), lane);
        at.advance(C::kPrepWarps);
      }
    }
    step -= w.num_chunks;
  }
}

}  // namespace kda::cuda::hopper
