// Pieces of kernels that work in mma fragment layout: tile copies, products of tiles in shared
// memory, sums and scans over the rows and columns of C fragments.
#pragma once

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/tile/chunk.cuh"
#include "cuda/tile/rows.cuh"

namespace kda::cuda {

// A piece that has to be converted to bf16 or gathered. Out of line: rare.
static __device__ __noinline__ void copy_converted(const Tensor& t, std::int64_t offset, int d,
                                                   int cols, std::uint32_t at) {
  float x[8];
  load8(t, offset, d, cols, x);
  ptx::store_shared(at, make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]),
                                   pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7])));
}

// Copies a [rows, kCols] block of 16-bit or f32 elements (row stride `stride`) into a swizzled bf16
// tile; rows and columns past the limits become 0.
template <int kRows, int kCols, int kThreads, bool kPlain>
__device__ inline void copy_matrix(const Tensor& t, std::int64_t offset, std::int64_t stride,
                                   int rows, int cols, std::uint32_t to) {
  constexpr int kPieces = kCols / 8;
  for (int e = threadIdx.x; e < kRows * kPieces; e += kThreads) {
    const int i = e / kPieces;
    const int d = e % kPieces * 8;
    const std::uint32_t at = to + swizzled<kCols>(i, e % kPieces);
    if (i >= rows || (!kPlain && d >= cols)) {
      ptx::store_shared(at, make_uint4(0, 0, 0, 0));
    } else if (kPlain || (t.vector && t.elem == Elem::kBF16 && d + 8 <= cols)) {
      ptx::cp_async(at, static_cast<const std::uint16_t*>(t.data) + offset + i * stride + d);
    } else {
      copy_converted(t, offset + i * stride, d, cols, at);
    }
  }
}

// The same for bf16 rows of 16-byte pieces: `from` is the element (0, 0), rows past the limit are
// 0.
template <int kRows, int kCols, int kThreads>
__device__ inline void copy_rows(const std::uint16_t* from, std::int64_t stride, int rows,
                                 std::uint32_t to) {
  constexpr int kPieces = kCols / 8;
  constexpr int kStep = kThreads / kPieces;  // rows per round; the swizzle repeats after 8
  static_assert(kThreads % kPieces == 0 && kStep % 8 == 0);
  const int i = threadIdx.x / kPieces;
  const int piece = threadIdx.x % kPieces;
  from += i * stride + piece * 8;
  to += swizzled<kCols>(i, piece);
#pragma unroll
  for (int round = 0; round < (kRows + kStep - 1) / kStep; ++round) {
    if (kRows % kStep != 0 && i + round * kStep >= kRows) break;
    if (i + round * kStep < rows) {
      ptx::cp_async(to + round * kStep * kPitch<kCols> * 2, from);
    } else {
      ptx::store_shared(to + round * kStep * kPitch<kCols> * 2, make_uint4(0, 0, 0, 0));
    }
    from += kStep * stride;
  }
}

// acc [16, 8 kTiles] += rows row0.. of `left` times columns col0.. of the row-major tile `right`.
template <int kDepth, int kRight, int kTiles>
__device__ inline void multiply_rows(std::uint32_t left, int row0, std::uint32_t right, int col0,
                                     int lane, float (&acc)[kTiles][4]) {
#pragma unroll
  for (int s = 0; s < kDepth / 16; ++s) {
    std::uint32_t a[4];
    ptx::ldmatrix(a, block_address<kDepth>(left, row0, 16 * s, lane));
#pragma unroll
    for (int p = 0; p < kTiles / 2; ++p) {
      std::uint32_t b[4];
      ptx::ldmatrix_trans(b, block_address<kRight>(right, 16 * s, col0 + 16 * p, lane));
      ptx::mma_bf16(acc[2 * p], a, b[0], b[1]);
      ptx::mma_bf16(acc[2 * p + 1], a, b[2], b[3]);
    }
  }
}

// acc [16, 8 kTiles] += frag times rows row0 .. + 15 of `right`, columns col0..
template <int kRight, int kTiles>
__device__ inline void multiply_block(const std::uint32_t (&frag)[4], std::uint32_t right, int row0,
                                      int col0, int lane, float (&acc)[kTiles][4]) {
#pragma unroll
  for (int p = 0; p < kTiles / 2; ++p) {
    std::uint32_t b[4];
    ptx::ldmatrix_trans(b, block_address<kRight>(right, row0, col0 + 16 * p, lane));
    ptx::mma_bf16(acc[2 * p], frag, b[0], b[1]);
    ptx::mma_bf16(acc[2 * p + 1], frag, b[2], b[3]);
  }
}

// A fragment of the transpose of the 16x16 block at (row0, col0) of a 64x64 tile.
__device__ inline void load_transposed(std::uint32_t (&frag)[4], std::uint32_t tile, int row0,
                                       int col0, int lane) {
  std::uint32_t x[4];
  ptx::ldmatrix_trans(x, block_address<kC>(tile, row0, col0, lane));
  frag[0] = x[0];
  frag[1] = x[2];
  frag[2] = x[1];
  frag[3] = x[3];
}

template <int kTiles>
__device__ inline void clear(float (&acc)[kTiles][4]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int x = 0; x < 4; ++x)
      acc[t][x] = 0.0F;
  }
}

// acc *= factor, per channel; col = the thread's first channel.
template <int kTiles>
__device__ inline void scale_channels(const float* factor, int col, float (&acc)[kTiles][4]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const float2 x = *reinterpret_cast<const float2*>(factor + col + 8 * t);
    acc[t][0] *= x.x;
    acc[t][1] *= x.y;
    acc[t][2] *= x.x;
    acc[t][3] *= x.y;
  }
}

// Sum over the four lanes that share a row.
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffU, x, 1);
  return x + __shfl_xor_sync(0xffffffffU, x, 2);
}
// Sum over the eight lanes that share columns.
__device__ inline float column_sum(float x) {
  x += __shfl_xor_sync(0xffffffffU, x, 4);
  x += __shfl_xor_sync(0xffffffffU, x, 8);
  return x + __shfl_xor_sync(0xffffffffU, x, 16);
}

// The sum of a row from those of its kGroups column groups; 1 / |row| from sums of squares.
template <int kGroups>
__device__ inline float row_total(const float (*sum)[kC], int i) {
  float total = sum[0][i];
#pragma unroll
  for (int group = 1; group < kGroups; ++group)
    total += sum[group][i];
  return total;
}
template <int kGroups>
__device__ inline float row_rstd(const float (*sum)[kC], int i) {
  return rsqrtf(row_total<kGroups>(sum, i) + kNormEps);
}

// Inclusive sums over the 16 rows of the warp's block, for C fragment layout: [row][tile][e].
template <int kTiles>
__device__ inline void scan_fragment(int r, int c, float (&x)[2][kTiles][2]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int step = 1; step < 8; step *= 2) {
        const float a = __shfl_up_sync(0xffffffffU, x[0][t][e], 4 * step);
        const float b = __shfl_up_sync(0xffffffffU, x[1][t][e], 4 * step);
        if (r >= step) {
          x[0][t][e] += a;
          x[1][t][e] += b;
        }
      }
      x[1][t][e] += __shfl_sync(0xffffffffU, x[0][t][e], 28 + c);
    }
  }
}

// The same from the last row up.
template <int kTiles>
__device__ inline void suffix_scan_fragment(int r, int c, float (&x)[2][kTiles][2]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int step = 1; step < 8; step *= 2) {
        const float a = __shfl_down_sync(0xffffffffU, x[0][t][e], 4 * step);
        const float b = __shfl_down_sync(0xffffffffU, x[1][t][e], 4 * step);
        if (r + step < 8) {
          x[0][t][e] += a;
          x[1][t][e] += b;
        }
      }
      x[0][t][e] += __shfl_sync(0xffffffffU, x[1][t][e], c);
    }
  }
}

}  // namespace kda::cuda
