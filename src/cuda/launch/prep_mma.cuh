// run_prep_mma, for the units of inst/.
#pragma once

#include "cuda/kernels/prep_mma.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/instances.h"

namespace kda::cuda {

template <int kK>
void run_prep_mma(const ChunkArgs& args, void* stream) {
  const Inputs& in = args.in;
  const bool plain = args.shape.K == kK && is_plain(in.q) && is_plain(in.k) && is_plain(in.g);
  launch("prep_mma", plain ? prep_mma_kernel<kK, true> : prep_mma_kernel<kK, false>,
         args.map.num_chunks * args.shape.HV, kPrepThreads,
         plain ? sizeof(PrepTile<kK, true>) : sizeof(PrepTile<kK, false>), stream, args);
}

}  // namespace kda::cuda
