// The chain between the two passes over segments as a launch of its own. Grid: sequences * HV *
// (V / 16) blocks of 128 threads, a link each. Shared memory: 144 KiB.
#pragma once

#include "cuda/hopper/chain.cuh"

namespace kda::cuda::hopper {

__global__ void __launch_bounds__(SegmentSmem::kThreads)
    segments_kernel(const __grid_constant__ ChunkArgs args) {
  extern __shared__ __align__(16) char raw_smem[];
  make_link<SegmentSmem::kThreads>(args, *reinterpret_cast<SegmentSmem*>(raw_smem), blockIdx.x);
}

}  // namespace kda::cuda::hopper
