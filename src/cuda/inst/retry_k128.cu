// What the Hopper backward leaves to the kernels for any GPU (K = V = 128, plain tensors).
#include <algorithm>

#include "cuda/kernels/local_mma.cuh"
#include "cuda/kernels/prep_mma.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/launch.h"

namespace kda::cuda {

void launch_retries(const ChunkArgs& args, void* stream) {
  const std::int64_t tiles = args.map.num_chunks * args.shape.HV;
  const std::int64_t sms = device_attribute(cudaDevAttrMultiProcessorCount);
  launch("prep of retries", prep_retry_kernel<128>, std::min(tiles, kPrepBlocks * sms),
         kPrepThreads, sizeof(PrepTile<128, true>), stream, args);
  launch("local stage of retries", local_retry_kernel<128, 128>, std::min(tiles, sms),
         kLocalThreads<128>, sizeof(LocalSmem<128, 128>), stream, args);
}

}  // namespace kda::cuda
