// Sums of the chunk-local backward over the rows of a warp.
#pragma once

#include "cuda/hopper/local_layout.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/tile/fragment.cuh"

namespace kda::cuda::hopper {

// Sums over the 16 rows of a warp, [8 t + 2 c + e] in x[2 t + e] of every lane: the lane gets those
// of columns 8 r + 2 c, + 1.
template <int kStep>
__device__ inline void halve_columns(float (&x)[16], int r) {
  const bool upper = (r & kStep) != 0;
#pragma unroll
  for (int i = 0; i < 2 * kStep; ++i) {
    const float keep = upper ? x[2 * kStep + i] : x[i];
    const float send = upper ? x[i] : x[2 * kStep + i];
    x[i] = keep + __shfl_xor_sync(0xffffffffU, send, 4 * kStep);
  }
}
__device__ inline float2 column_sums(float (&x)[16], int r) {
  halve_columns<4>(x, r);
  halve_columns<2>(x, r);
  halve_columns<1>(x, r);
  return make_float2(x[0], x[1]);
}

// x [16 rows] -> its sums from the last row up, by a product with a triangle of ones. Three bf16
// terms hold an f32: what enters at the chunk's end and what its last token takes of it may be
// e^5 times larger than their difference, which all tokens of the chunk have in common.
template <typename L>
__device__ inline void sums_from_end(float (&x)[32], std::uint32_t smem, int r, int c) {
  const std::uint32_t one_low = 2 * c >= r ? 0x3f80U : 0U;
  const std::uint32_t one_high = 2 * c + 1 >= r ? 0x3f800000U : 0U;
  const std::uint32_t triangle = one_low | one_high;
  // Zero and ones from memory, where registers can hold them: known constants are put together
  // again for every product.
  uint4 known = make_uint4(0U, 0U, 0x3f803f80U, 0U);
  if constexpr (L::kSpareRegs) known = ptx::load_shared(smem + L::kConstants);
  const std::uint32_t ones[4] = {triangle | known.x, known.y, known.z, triangle | known.w};
#pragma unroll
  for (int first = 0; first < 8; first += 4) {  // four at a time, for their latencies
    float sum[4][4];
#pragma unroll
    for (int n = 0; n < 3; ++n) {
      std::uint32_t term[4][2];
#pragma unroll
      for (int t = 0; t < 4; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* pair = x + 4 * (first + t) + 2 * half;
          const std::uint32_t rounded = pack_bf16(pair[0], pair[1]);
          pair[0] -= low_of(rounded);
          pair[1] -= high_of(rounded);
          term[t][half] = ptx::movmatrix(rounded);
        }
      }
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        if (n == 0) {
          ptx::mma_bf16_set(sum[t], ones, term[t][0], term[t][1]);
        } else {
          ptx::mma_bf16(sum[t], ones, term[t][0], term[t][1]);
        }
      }
    }
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        x[4 * (first + t) + e] = sum[t][e];
    }
  }
}

}  // namespace kda::cuda::hopper
