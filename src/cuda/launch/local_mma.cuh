// run_local_mma, for the units of inst/.
#pragma once

#include "cuda/kernels/local_mma.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/instances.h"

namespace kda::cuda {

template <int kK, int kV, bool kPlain>
void run_local_mma(const ChunkArgs& args, void* stream) {
  launch("local_mma", local_mma_kernel<kK, kV, kPlain>, args.map.num_chunks * args.shape.HV,
         kLocalThreads<kK>, sizeof(LocalSmem<kK, kV>), stream, args);
}

}  // namespace kda::cuda
