// Rows of gradients of the chunk-local backward on their way to memory.
#pragma once

#include "cuda/hopper/local_layout.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/shared.cuh"

namespace kda::cuda::hopper {

// [16 rows, 64 channels] words of a warp to its rows of a tile; before: what was there has been
// read.
__device__ inline void stage_rows(const std::uint32_t (&words)[2][8], std::uint32_t tile, int warp,
                                  int lane) {
#pragma unroll
  for (int t = 0; t < 8; t += 2) {
    const std::uint32_t x[4] = {words[0][t], words[1][t], words[0][t + 1], words[1][t + 1]};
    ptx::stmatrix(tile + tile_offset(16 * warp + lane % 16, t + lane / 16), x);
  }
}
// From there to memory, `to`: row 0 of the chunk.
__device__ inline void store_rows(std::uint32_t tile, int warp, int lane, std::uint16_t* to,
                                  std::int64_t stride, int rows) {
  const int first = 16 * warp + lane / 8;
  uint4 x[4];
#pragma unroll
  for (int part = 0; part < 4; ++part)
    x[part] = ptx::load_shared(tile + tile_offset(first + 4 * part, lane % 8));
  to += first * stride + lane % 8 * 8;
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    ptx::store_global_if(to, x[part], first + 4 * part < rows);
    to += 4 * stride;
  }
}

// Per-value-head shares of dq or dk, f32.
__device__ inline void store_part(const float (&x)[32], float* to, std::int64_t stride,
                                  const bool (&valid)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (!valid[row]) continue;
#pragma unroll
    for (int t = 0; t < 8; ++t) {
      *reinterpret_cast<float2*>(to + 8 * row * stride + 8 * t) =
          make_float2(x[4 * t + 2 * row], x[4 * t + 2 * row + 1]);
    }
  }
}

}  // namespace kda::cuda::hopper
