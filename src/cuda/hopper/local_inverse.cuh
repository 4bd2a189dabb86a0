// A = (I + Lo)^-1 of a chunk of the chunk-local backward, by the four prep warps: blocks of Lo,
// inverses on the diagonal, merges.
#pragma once

#include <type_traits>

#include "cuda/hopper/local_layout.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/warpgroup.cuh"

namespace kda::cuda::hopper {

// x as a rounded pair and what is left of it.
__device__ inline void split_pair(float x, float y, std::uint32_t* high, std::uint32_t* low) {
  *high = pack_bf16(x, y);
  *low = pack_bf16(x - low_of(*high), y - high_of(*high));
}

// acc + rest += (ah + al) (bh + bl) without the product of the low parts; two sums, as their
// latencies add up.
__device__ inline void mma_three(float (&acc)[4], float (&rest)[4], const std::uint32_t (&ah)[4],
                                 const std::uint32_t (&al)[4], const std::uint32_t (&bh)[2],
                                 const std::uint32_t (&bl)[2]) {
  ptx::mma_bf16(rest, al, bh[0], bh[1]);
  ptx::mma_bf16(acc, ah, bh[0], bh[1]);
  ptx::mma_bf16(rest, ah, bl[0], bl[1]);
}

// Lo: block (w, w) and one or two more by warp w, so that none makes four: (3, 0), (1, 0) and (2,
// 0), (2, 1), (3, 2) and (3, 1). Off the diagonal split into high parts at (I, J) and low parts at
// (J, I) of the tile of A; the diagonal block is inverted and stored the same way, its low part
// apart.
template <typename L>
__device__ inline void local_blocks(std::uint32_t smem, std::uint32_t set, std::uint32_t table,
                                    int warp, int lane) {
  const int r = lane / 4;
  const int c = lane % 4;
  std::uint32_t a[4 * L::kHalves][4];  // rows of block I
  float beta_of_row[2];
  const auto load_block = [&](int I) {
#pragma unroll
    for (int s = 0; s < 4 * L::kHalves; ++s) {
      ptx::ldmatrix(a[s], set + L::kKeys + s / 4 * L::kTile +
                              tile_offset(16 * I + lane % 16, 2 * (s % 4) + lane / 16));
    }
    beta_of_row[0] = ptx::load_shared_f(table + L::kBeta + (16 * I + r) * 4);
    beta_of_row[1] = ptx::load_shared_f(table + L::kBeta + (16 * I + r) * 4 + 32);
  };
  load_block(warp);
  // Rows and pieces of b in such an order that the registers of an operand are neighbours.
  const auto product = [&](int J, float(&lo)[2][4]) {
#pragma unroll
    for (int s = 0; s < 4 * L::kHalves; ++s) {
      std::uint32_t b[4];
      ptx::ldmatrix(b,
                    set + L::kColumns + s / 4 * L::kTile +
                        tile_offset(16 * J + lane % 8 + lane / 16 * 8, 2 * (s % 4) + lane / 8 % 2));
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        if (s == 0) {
          ptx::mma_bf16_set(lo[t], a[s], b[2 * t], b[2 * t + 1]);
        } else {
          ptx::mma_bf16(lo[t], a[s], b[2 * t], b[2 * t + 1]);
        }
      }
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int x = 0; x < 4; ++x)
        lo[t][x] *= beta_of_row[x / 2];
    }
  };
  const std::uint32_t matrix = smem + L::kInverse;
  {
    float lo[2][4];
    product(warp, lo);
    const int j = lane % 16;
    float x[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i)
      x[i] = i == j ? 1.0F : 0.0F;
      // Element (i, m) of the block is in lane 4 (i % 8) + m % 8 / 2. What is above the diagonal
      // may be infinite and is never read.
#pragma unroll
    for (int m = 0; m < kChunk - 1; ++m) {
#pragma unroll
      for (int i = m + 1; i < kChunk; ++i) {
        const float lo_im =
            __shfl_sync(0xffffffffU, lo[m / 8][2 * (i / 8) + m % 2], 4 * (i % 8) + m % 8 / 2);
        x[i] = fmaf(-lo_im, x[m], x[i]);
      }
    }
    const int first = lane / 16 * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float value = lane < 16 ? x[i] : x[i + 8];
      const __nv_bfloat16 high = __float2bfloat16_rn(value);
      const __nv_bfloat16 low = __float2bfloat16_rn(value - __bfloat162float(high));
      ptx::store_shared_half(
          matrix + tile_offset(16 * warp + first + i, 2 * warp + j / 8) + j % 8 * 2,
          __bfloat16_as_ushort(high));
      ptx::store_shared_half(smem + L::kLows + warp * 512 + (first + i) * 32 + j * 2,
                             __bfloat16_as_ushort(low));
    }
  }
  const auto change_frame = [&](int J) {  // of the rows, to that of block J
    const std::uint32_t chain = table + L::kChain + (J + 1) * L::kD * 2 + 4 * c;
#pragma unroll
    for (int s = 0; s < 4 * L::kHalves; ++s) {
      const std::uint32_t near = ptx::load_shared_pair(chain + 32 * s);
      const std::uint32_t far = ptx::load_shared_pair(chain + 32 * s + 16);
      a[s][0] = times_pair(a[s][0], near);
      a[s][1] = times_pair(a[s][1], near);
      a[s][2] = times_pair(a[s][2], far);
      a[s][3] = times_pair(a[s][3], far);
    }
  };
  int I = warp;
  int J = warp - 1;
  for (;;) {
    if (J < (I == warp && warp > 1 ? 1 : 0)) {
      if (I != warp || warp > 1) break;
      I = 3 - warp;
      load_block(I);
#pragma unroll 1
      for (J = I - 1; J > 0; --J)
        change_frame(J);
    }
    change_frame(J);
    float lo[2][4];
    product(J, lo);
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t high;
        std::uint32_t low;
        split_pair(lo[t][2 * half], lo[t][2 * half + 1], &high, &low);
        ptx::store_shared_pair(matrix + tile_offset(16 * I + r + 8 * half, 2 * J + t) + 4 * c,
                               high);
        ptx::store_shared_pair(matrix + tile_offset(16 * J + r + 8 * half, 2 * I + t) + 4 * c, low);
      }
    }
    --J;
  }
}

// Columns of block column J = warp of A: A_IJ = -A_II sum_K Lo_IK A_KJ, K = J .. I - 1.
template <typename L>
__device__ inline void local_merge(std::uint32_t smem, std::uint32_t sync, int J, int lane) {
  const int r = lane / 4;
  const int c = lane % 4;
  const std::uint32_t matrix = smem + L::kInverse;
  const auto block = [&](int I, int K) {
    return matrix + tile_offset(16 * I + lane % 16, 2 * K + lane / 16);
  };
  const auto lows = [&](int I) {
    return smem + L::kLows + I * 512 + lane % 16 * 32 + lane / 16 * 16;
  };
  std::uint32_t high[3][2][2];  // A_KJ as B operands: [K - J][8 columns]
  std::uint32_t low[3][2][2];
  std::uint32_t out[3][2][2];  // A_IJ: [I - J - 1][8 columns][row half]
  {
    std::uint32_t x[4];
    std::uint32_t y[4];
    ptx::ldmatrix_trans(x, block(J, J));
    ptx::ldmatrix_trans(y, lows(J));
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        high[0][t][half] = x[2 * t + half];
        low[0][t][half] = y[2 * t + half];
      }
    }
  }
  const auto step = [&](auto offset) {
    constexpr int m = decltype(offset)::value;
    const int I = J + m < 4 ? J + m : 3;  // past the end: computed all the same, not stored
    float sum[2][4] = {};
    float rest[2][4] = {};
#pragma unroll
    for (int k = 0; k < m; ++k) {
      std::uint32_t ah[4];
      std::uint32_t al[4];
      const int K = J + k < 4 ? J + k : 3;
      ptx::ldmatrix(ah, block(I, K));
      ptx::ldmatrix(al, block(K, I));
#pragma unroll
      for (int t = 0; t < 2; ++t)
        mma_three(sum[t], rest[t], ah, al, high[k][t], low[k][t]);
    }
    std::uint32_t ah[4];
    std::uint32_t al[4];
    ptx::ldmatrix(ah, block(I, I));
    ptx::ldmatrix(al, lows(I));
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      std::uint32_t bh[2];
      std::uint32_t bl[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        split_pair(-sum[t][2 * half] - rest[t][2 * half],
                   -sum[t][2 * half + 1] - rest[t][2 * half + 1], &bh[half], &bl[half]);
        bh[half] = ptx::movmatrix(bh[half]);
        bl[half] = ptx::movmatrix(bl[half]);
      }
      float result[4] = {};
      float more[4] = {};
      mma_three(result, more, ah, al, bh, bl);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t left;
        split_pair(result[2 * half] + more[2 * half], result[2 * half + 1] + more[2 * half + 1],
                   &out[m - 1][t][half], &left);
        if constexpr (m < 3) {
          high[m][t][half] = ptx::movmatrix(out[m - 1][t][half]);
          low[m][t][half] = ptx::movmatrix(left);
        }
      }
    }
  };
  step(std::integral_constant<int, 1>{});
  step(std::integral_constant<int, 2>{});
  step(std::integral_constant<int, 3>{});
  ptx::named_sync(sync, 128);  // Lo read before A takes its place
#pragma unroll
  for (int m = 1; m < 4; ++m) {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (J + m > 3) continue;
        ptx::store_shared_pair(matrix + tile_offset(16 * (J + m) + r + 8 * half, 2 * J + t) + 4 * c,
                               out[m - 1][t][half]);
      }
    }
  }
#pragma unroll 1
  for (int K = 0; K < J; ++K)
    ptx::store_shared(block(K, J), make_uint4(0, 0, 0, 0));
}

}  // namespace kda::cuda::hopper
