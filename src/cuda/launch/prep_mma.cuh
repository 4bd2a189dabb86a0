// run_prep_mma, for the units of inst/.
#pragma once

#include "cuda/kernels/prep_mma.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/instances.h"

namespace kda::cuda {

template <int kK>
void run_prep_mma(const ChunkArgs& args, void* stream) {
  const Inputs& in = args.in;
  const std::int64_t tiles = args.map.num_chunks * args.shape.HV;
  if constexpr (kK <= 128) {  // inputs of wider heads would leave room for one block per SM
    if (args.shape.K == kK && is_plain(in.q) && is_plain(in.k) && is_plain(in.g)) {
      launch("prep_mma", prep_mma_kernel<kK, true>, tiles, kPrepThreads, sizeof(PrepTile<kK, true>),
             stream, args);
      return;
    }
  }
  launch("prep_mma", prep_mma_kernel<kK, false>, tiles, kPrepThreads, sizeof(PrepTile<kK, false>),
         stream, args);
}

}  // namespace kda::cuda
