// run_local_bounded_mma, for the units of inst/.
#pragma once

#include "cuda/kernels/local_bounded_mma.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/instances.h"

namespace kda::cuda {

template <int kD>
bool run_local_bounded_mma(const ChunkArgs& args, void* stream) {
  constexpr auto kSmem = static_cast<int>(sizeof(BoundedSmem<kD>));
  if (kSmem > device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) return false;
  const std::int64_t tiles = args.map.num_chunks * args.shape.HV;
  const std::int64_t blocks =
      kBoundedBlocks<kD> *
      static_cast<std::int64_t>(device_attribute(cudaDevAttrMultiProcessorCount));
  launch("local_bounded_mma", local_bounded_mma_kernel<kD>, tiles < blocks ? tiles : blocks,
         kBoundedThreads<kD>, kSmem, stream, args);
  return true;
}

}  // namespace kda::cuda
