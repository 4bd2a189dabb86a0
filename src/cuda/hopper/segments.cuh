// The chain between the two passes over segments as a launch of its own. Grid: sequences * HV *
// (V / 16) blocks of 128 threads, a link each. Shared memory: 144 KiB, with heads of 64 72 KiB.
#pragma once

#include "cuda/hopper/chain.cuh"

namespace kda::cuda::hopper {

template <int kD>
__global__ void __launch_bounds__(SegmentSmem<kD>::kThreads)
    segments_kernel(const __grid_constant__ ChunkArgs args) {
  extern __shared__ __align__(16) char raw_smem[];
  using Smem = SegmentSmem<kD>;
  make_link<Smem::kThreads>(args, *reinterpret_cast<Smem*>(raw_smem), blockIdx.x);
}

}  // namespace kda::cuda::hopper
