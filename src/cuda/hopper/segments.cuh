// The chain between the two passes over segments of K = 64, a launch of its own. Grid: sequences *
// HV * 4 blocks of 128 threads, a link each. Shared memory: 72 KiB.
#pragma once

#include "cuda/hopper/chain.cuh"

namespace kda::cuda::hopper {

using SegmentSmem64 = SegmentSmem<64>;

__global__ void __launch_bounds__(SegmentSmem64::kThreads)
    segments_kernel(const __grid_constant__ ChunkArgs args) {
  extern __shared__ __align__(16) char raw_smem[];
  make_link<SegmentSmem64::kThreads>(args, *reinterpret_cast<SegmentSmem64*>(raw_smem), blockIdx.x);
}

}  // namespace kda::cuda::hopper
