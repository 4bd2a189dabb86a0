// What lies between the two passes over segments: the states at the ends of ranks, one after
// another.
//
// In [K, V]: S_r = M_r S_(r-1) + E_r for the ranks r = 1 .. P - 2 of every sequence, S_0 is where
// rank 0 ended; f32, in a fixed order, in place of E. Grid: sequences * HV * (V / 16) blocks of 128
// threads; a thread has two rows of 8 columns. The next map is on its way while this one is used.
// Shared memory: 144 KiB.
#pragma once

#include "cuda/args.h"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/tile/swizzle.cuh"

namespace kda::cuda::hopper {

struct SegmentSmem {
  static constexpr int kD = 128;
  static constexpr int kColumns = 16;
  static constexpr int kThreads = 128;
  float map[2][kD * kD];  // [column, row]
  float state[2][kD][kColumns];
};

__global__ void __launch_bounds__(SegmentSmem::kThreads)
    segments_kernel(const __grid_constant__ ChunkArgs args) {
  constexpr int kD = SegmentSmem::kD;
  constexpr int kColumns = SegmentSmem::kColumns;
  extern __shared__ __align__(16) char raw_smem[];
  auto& s = *reinterpret_cast<SegmentSmem*>(raw_smem);
  const int thread = static_cast<int>(threadIdx.x);
  const int k = 2 * (thread % 64);
  const int v = thread / 64 * 8;
  const int v0 = static_cast<int>(blockIdx.x) % (kD / kColumns) * kColumns;
  const std::int64_t head = blockIdx.x / (kD / kColumns);  // of the sequences that are cut
  const std::int64_t n = head / args.shape.HV;
  const std::int64_t hv = head - n * args.shape.HV;
  const int ranks = args.segments.most - 1;  // that have a matrix
  const std::int64_t first = (n * ranks * args.shape.HV + hv) * kD * kD;
  const std::int64_t next = static_cast<std::int64_t>(args.shape.HV) * kD * kD;
  const auto load_map = [&](int rank) {
    const float* from = args.segments.maps + first + rank * next + 4 * thread;
    const std::uint32_t to = smem_address(s.map[rank % 2]) + 16 * thread;
#pragma unroll 8
    for (int round = 0; round < kD * kD / (4 * SegmentSmem::kThreads); ++round) {
      ptx::cp_async(to + 16 * SegmentSmem::kThreads * round,
                    from + 4 * SegmentSmem::kThreads * round);
    }
    ptx::cp_async_commit();
  };
  if (ranks < 2 || (args.segments.counts != nullptr && n >= args.segments.counts[2])) return;
  load_map(1);
  // [row of the two][four columns of the eight]
  float4* end = reinterpret_cast<float4*>(args.segments.ends + first + k * kD + v0 + v);
#pragma unroll
  for (int row = 0; row < 2; ++row) {
#pragma unroll
    for (int four = 0; four < 2; ++four)
      *reinterpret_cast<float4*>(&s.state[0][k + row][v + 4 * four]) = end[kD / 4 * row + four];
  }
  for (int rank = 1; rank < ranks; ++rank) {
    if (rank + 1 < ranks) load_map(rank + 1);
    end += next / 4;
    float4 sum[2][2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int four = 0; four < 2; ++four)
        sum[row][four] = end[kD / 4 * row + four];
    }
    if (rank + 1 < ranks) {
      ptx::cp_async_wait<1>();
    } else {
      ptx::cp_async_wait<0>();
    }
    __syncthreads();  // map and state before their readers
    const float* map = s.map[rank % 2] + k;
    const auto& now = s.state[(rank + 1) % 2];
#pragma unroll 16
    for (int j = 0; j < kD; ++j) {
      const float2 m = *reinterpret_cast<const float2*>(map + j * kD);
#pragma unroll
      for (int four = 0; four < 2; ++four) {
        const float4 x = *reinterpret_cast<const float4*>(&now[j][v + 4 * four]);
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const float factor = row == 0 ? m.x : m.y;
          sum[row][four].x = fmaf(factor, x.x, sum[row][four].x);
          sum[row][four].y = fmaf(factor, x.y, sum[row][four].y);
          sum[row][four].z = fmaf(factor, x.z, sum[row][four].z);
          sum[row][four].w = fmaf(factor, x.w, sum[row][four].w);
        }
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int four = 0; four < 2; ++four) {
        end[kD / 4 * row + four] = sum[row][four];
        *reinterpret_cast<float4*>(&s.state[rank % 2][k + row][v + 4 * four]) = sum[row][four];
      }
    }
    __syncthreads();  // this map is read before the one after the next takes its place
  }
}

}  // namespace kda::cuda::hopper
