// The chunks that the local kernel for Hopper left to others.
#pragma once

#include "cuda/args.h"

namespace kda::cuda {

// Calls `f` with each (chunk, value head) of this block's share whose word in args.retry is not
// zero: by all kThreads threads of the block, one after another.
template <int kThreads, typename F>
__device__ inline void for_each_retry(const ChunkArgs& args, F&& f) {
  __shared__ std::uint32_t wanted[kThreads / 32];
  const std::int64_t tiles = args.map.num_chunks * args.shape.HV;
  const std::int64_t each = (tiles + gridDim.x - 1) / gridDim.x;
  const std::int64_t begin = blockIdx.x * each;
  const std::int64_t end = begin + each < tiles ? begin + each : tiles;
  for (std::int64_t base = begin; base < end; base += kThreads) {
    const std::int64_t mine = base + threadIdx.x;
    const std::uint32_t word =
        __ballot_sync(0xffffffffU, mine < end && args.retry[mine < end ? mine : begin] != 0);
    __syncthreads();  // the words before are read
    if (threadIdx.x % 32 == 0) wanted[threadIdx.x / 32] = word;
    __syncthreads();  // words before their readers
    for (int w = 0; w < kThreads / 32; ++w) {
      for (std::uint32_t bits = wanted[w]; bits != 0; bits &= bits - 1) {
        f(base + 32 * w + __ffs(static_cast<int>(bits)) - 1);
        __syncthreads();  // its shared memory before that of the next one
      }
    }
  }
}

}  // namespace kda::cuda
