// Tables that packed calls need: offsets as int64, first chunk of each sequence, sequence of each
// chunk.
#pragma once

#include "cuda/tile/chunk.cuh"
#include "cuda/tile/element.cuh"

namespace kda::cuda {

// Up to 448 offsets travel as a kernel argument, so that host memory is read before the call
// returns and nothing of it is needed at replay of a graph.
inline constexpr int kOffsetsPerLaunch = 448;
struct OffsetArgs {
  std::int64_t value[kOffsetsPerLaunch];
};

__global__ void __launch_bounds__(256) write_offsets_kernel(const __grid_constant__ OffsetArgs args,
                                                            std::int64_t* offsets, int count) {
  for (int i = threadIdx.x; i < count; i += 256)
    offsets[i] = args.value[i];
}

// Copies cu_seqlens from device memory; makes it non-decreasing and within [0, T]. One block; each
// thread owns a run of consecutive entries.
__global__ void __launch_bounds__(1024)
    read_offsets_kernel(Tensor cu, std::int64_t count, std::int64_t T, std::int64_t* offsets) {
  __shared__ std::int64_t highest[1024];
  const std::int64_t run = (count + 1023) / 1024;
  const std::int64_t begin = threadIdx.x * run;
  const std::int64_t end = begin + run < count ? begin + run : count;
  std::int64_t top = 0;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t x = load_index(cu, i * cu.s0);
    top = x > top ? x : top;
  }
  highest[threadIdx.x] = top;
  __syncthreads();  // run maxima before the prefix
  top = 0;
  for (int i = 0; i < static_cast<int>(threadIdx.x); ++i)
    top = highest[i] > top ? highest[i] : top;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t x = load_index(cu, i * cu.s0);
    top = x > top ? x : top;
    offsets[i] = i == 0 ? 0 : (top < T ? top : T);
  }
}

// first_chunk[n] = sum over m < n of ceil(length_m / 64). One block.
__global__ void __launch_bounds__(1024)
    first_chunk_kernel(const std::int64_t* offsets, std::int64_t N, std::int64_t* first_chunk) {
  __shared__ std::int64_t sums[1024];
  const std::int64_t run = (N + 1023) / 1024;
  const std::int64_t begin = threadIdx.x * run;
  const std::int64_t end = begin + run < N ? begin + run : N;
  std::int64_t sum = 0;
  for (std::int64_t n = begin; n < end; ++n)
    sum += (offsets[n + 1] - offsets[n] + kC - 1) / kC;
  sums[threadIdx.x] = sum;
  __syncthreads();  // run sums before the prefix
  sum = 0;
  for (int i = 0; i < static_cast<int>(threadIdx.x); ++i)
    sum += sums[i];
  for (std::int64_t n = begin; n < end; ++n) {
    first_chunk[n] = sum;
    sum += (offsets[n + 1] - offsets[n] + kC - 1) / kC;
  }
  if (end == N && begin <= N) first_chunk[N] = sum;  // every such thread has the same total
}

// The last sequence whose first chunk is <= c, or -1 past the end.
__global__ void __launch_bounds__(256)
    chunk_sequence_kernel(const std::int64_t* first_chunk, std::int64_t N, std::int64_t num_chunks,
                          std::int32_t* chunk_seq) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (c >= num_chunks) return;
  if (c >= first_chunk[N]) {
    chunk_seq[c] = -1;
    return;
  }
  std::int64_t low = 0;
  std::int64_t high = N;  // first_chunk[low] <= c < first_chunk[high]
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    if (first_chunk[middle] <= c) {
      low = middle;
    } else {
      high = middle;
    }
  }
  chunk_seq[c] = static_cast<std::int32_t>(low);
}

}  // namespace kda::cuda
