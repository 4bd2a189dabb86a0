// How the chunk-local kernel follows the reverse scan: it starts beside it, on multiprocessors that
// the scan leaves idle, and takes a chunk of a head once its X and its gradient of the state are in
// memory.
//
// args.progress: [0] turns that blocks of the local kernel have drawn, [1 + chunk HV + hv] what the
// scan has of the chunk, of kChunkDone. All are zero before the scan starts. In packed calls, whose
// scan leaves nothing idle until its end, only the turns count.
#pragma once

#include "cuda/args.h"
#include "cuda/launch/check.cuh"
#include "cuda/ptx/dependent.cuh"

namespace kda::cuda::hopper {

inline constexpr std::uint32_t kChunkDone = 4;

__device__ inline std::uint32_t* progress_of(const ChunkArgs& args, std::int64_t chunk, int hv) {
  return args.progress + 1 + chunk * args.shape.HV + hv;
}

inline void clear_progress(const ChunkArgs& args, void* stream) {
  if (args.progress == nullptr) return;
  const std::int64_t words =
      1 + (args.map.chunk_seq == nullptr ? args.map.num_chunks * args.shape.HV : 0);
  check_cuda(cudaMemsetAsync(args.progress, 0, static_cast<std::size_t>(words) * 4,
                             static_cast<cudaStream_t>(stream)),
             "hopper progress");
}

}  // namespace kda::cuda::hopper
