// What lies between the two passes over segments: the states at their ends, one after another.
//
// In [K, V]: S_(p+1) = M_p S_p + E_p from the first segment on, or for gradients from the last one
// back; f32, in a fixed order. Grid: N * HV * (V / 8) blocks of K = 128 threads; a thread has one
// row of 8 columns. The next map is on its way while this one is used. Shared memory: 136 KiB.
#pragma once

#include "cuda/args.h"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/tile/swizzle.cuh"

namespace kda::cuda::hopper {

struct SegmentSmem {
  static constexpr int kD = 128;
  static constexpr int kColumns = 8;
  float map[2][kD * kD];  // [column, row]
  float state[2][kD][kColumns];
};

template <bool kReverse>
__global__ void __launch_bounds__(128) segments_kernel(const __grid_constant__ ChunkArgs args) {
  constexpr int kD = SegmentSmem::kD;
  constexpr int kColumns = SegmentSmem::kColumns;
  extern __shared__ __align__(16) char raw_smem[];
  auto& s = *reinterpret_cast<SegmentSmem*>(raw_smem);
  const int k = threadIdx.x;
  const int v0 = static_cast<int>(blockIdx.x) % (kD / kColumns) * kColumns;
  const std::int64_t head = blockIdx.x / (kD / kColumns);
  const std::int64_t n = head / args.shape.HV;
  const std::int64_t hv = head - n * args.shape.HV;
  const int steps = args.segments - 1;
  const auto place = [&](int step) {
    const int p = kReverse ? steps - 1 - step : step;
    return ((n * steps + p) * args.shape.HV + hv) * kD * kD;
  };
  const auto load_map = [&](int step) {
    const float* from = args.segment_maps + place(step) + 4 * k;
    const std::uint32_t to = smem_address(s.map[step % 2]) + 16 * k;
#pragma unroll 8
    for (int round = 0; round < kD * kD / 512; ++round)
      ptx::cp_async(to + 2048 * round, from + 512 * round);
    ptx::cp_async_commit();
  };
  load_map(0);
  const Tensor& first = kReverse ? args.d_final_state : args.in.initial_state;
#pragma unroll
  for (int v = 0; v < kColumns; ++v) {
    s.state[0][k][v] = first.data == nullptr
                           ? 0.0F
                           : __ldg(static_cast<const float*>(first.data) + n * first.s0 +
                                   hv * first.s1 + k * first.s2 + (v0 + v) * first.s3);
  }
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) load_map(step + 1);
    float4* end = reinterpret_cast<float4*>(args.segment_ends + place(step) + k * kD + v0);
    float4 sum[2] = {end[0], end[1]};
    if (step + 1 < steps) {
      ptx::cp_async_wait<1>();
    } else {
      ptx::cp_async_wait<0>();
    }
    __syncthreads();  // map and state before their readers
    const float* map = s.map[step % 2] + k;
    const auto& now = s.state[step % 2];
#pragma unroll 16
    for (int j = 0; j < kD; ++j) {
      const float m = map[j * kD];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float4 x = *reinterpret_cast<const float4*>(&now[j][4 * half]);
        sum[half].x = fmaf(m, x.x, sum[half].x);
        sum[half].y = fmaf(m, x.y, sum[half].y);
        sum[half].z = fmaf(m, x.z, sum[half].z);
        sum[half].w = fmaf(m, x.w, sum[half].w);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      end[half] = sum[half];
      *reinterpret_cast<float4*>(&s.state[(step + 1) % 2][k][4 * half]) = sum[half];
    }
    __syncthreads();  // this map is read before the one after the next takes its place
  }
}

}  // namespace kda::cuda::hopper
