// Products of the chunk-local backward: operands in shared memory, accumulators [64 tokens, 64
// channels] of a warpgroup, and the frames that these are in.
#pragma once

#include "cuda/hopper/local_layout.cuh"
#include "cuda/ptx/shared_vector.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/ptx/wgmma_tile.cuh"

namespace kda::cuda::hopper {

// A tile whose rows are m or n and whose columns are k; 16 columns on: + 32 bytes.
__device__ inline std::uint64_t by_rows(std::uint32_t tile) {
  return ptx::matrix_descriptor(tile, 16, 1024, ptx::Swizzle::kRows128);
}
// A tile whose rows are k; 16 rows on: + 2048 bytes.
__device__ inline std::uint64_t by_columns(std::uint32_t tile) {
  return ptx::matrix_descriptor(tile, 64 * kRowBytes, 1024, ptx::Swizzle::kRows128);
}

// acc = left right^T over all value columns.
template <typename L>
__device__ inline void start_values_product(float (&acc)[32], std::uint32_t left,
                                            std::uint32_t right) {
#pragma unroll
  for (int half = 0; half < L::kHalves; ++half) {
    const std::uint64_t a = by_rows(left + half * L::kTile);
    const std::uint64_t b = by_rows(right + half * L::kTile);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      if (half == 0 && s == 0) {
        ptx::wgmma_tile<false, false, false>(acc, a, b);
      } else {
        ptx::wgmma_tile<false, false, true>(acc, ptx::advance_descriptor(a, 32 * s),
                                            ptx::advance_descriptor(b, 32 * s));
      }
    }
  }
}

// The frame factors of a thread's channels, and acc *= them, rows times `first` and `second`.
__device__ inline void load_frame(std::uint32_t chain, float2 (&x)[8]) {
#pragma unroll
  for (int t = 0; t < 8; ++t)
    x[t] = pair_floats(ptx::load_shared_pair(chain + 16 * t));
}
__device__ inline void change_frame(const float2 (&x)[8], float (&acc)[32], float first,
                                    float second) {
#pragma unroll
  for (int t = 0; t < 8; ++t) {
    acc[4 * t] *= x[t].x * first;
    acc[4 * t + 1] *= x[t].y * first;
    acc[4 * t + 2] *= x[t].x * second;
    acc[4 * t + 3] *= x[t].y * second;
  }
}
__device__ inline void change_frame(const float2 (&x)[8], float (&acc)[32]) {
#pragma unroll
  for (int t = 0; t < 8; ++t) {
    acc[4 * t] *= x[t].x;
    acc[4 * t + 1] *= x[t].y;
    acc[4 * t + 2] *= x[t].x;
    acc[4 * t + 3] *= x[t].y;
  }
}

}  // namespace kda::cuda::hopper
