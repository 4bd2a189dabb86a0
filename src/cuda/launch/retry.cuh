// run_retries, for the units of inst/.
#pragma once

#include <algorithm>

#include "cuda/kernels/local_mma.cuh"
#include "cuda/kernels/prep_mma.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/instances.h"

namespace kda::cuda {

template <int kD>
void run_retries(const ChunkArgs& args, void* stream) {
  const std::int64_t tiles = args.map.num_chunks * args.shape.HV;
  const std::int64_t sms = device_attribute(cudaDevAttrMultiProcessorCount);
  launch("prep of retries", prep_retry_kernel<kD>, std::min(tiles, kPrepBlocks * sms), kPrepThreads,
         sizeof(PrepTile<kD, true>), stream, args);
  launch("local stage of retries", local_retry_kernel<kD, kD>, std::min(tiles, sms),
         kLocalThreads<kD>, sizeof(LocalSmem<kD, kD>), stream, args);
}

}  // namespace kda::cuda
