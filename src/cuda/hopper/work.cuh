// Work items: one sequence, one value head and, where the value columns are split, one part.
#pragma once

#include "cuda/hopper/layout.cuh"
#include "cuda/tile/chunk.cuh"

namespace kda::cuda::hopper {

struct Work {
  SequenceSpan span;
  std::int64_t n = 0;
  int hv = 0;
  int v0 = 0;  // first value column
  int num_chunks = 0;
};

template <typename C>
__device__ inline Work work_at(const ChunkArgs& args, std::int64_t item) {
  const int parts = args.shape.V / (64 * C::kValueGroups);
  const int heads = args.shape.HV * parts;
  Work w;
  w.n = item / heads;
  const int rest = static_cast<int>(item - w.n * heads);
  w.hv = rest / parts;
  w.v0 = (rest - w.hv * parts) * 64 * C::kValueGroups;
  if (args.map.offsets == nullptr) {
    w.span = {w.n, 0, args.map.T, w.n * args.map.per_row};
  } else {
    w.span = sequence_at(args.map, w.n);
  }
  if constexpr (C::kReverse) {  // whole 64-token blocks: their last rows are written too
    w.num_chunks = static_cast<int>((w.span.length + kBlockTokens - 1) / kBlockTokens) *
                   (kBlockTokens / kChunk);
  } else {
    w.num_chunks = static_cast<int>((w.span.length + kChunk - 1) / kChunk);
  }
  return w;
}

// The chunk that the ring's step `step` of this item holds.
template <typename C>
__device__ inline int chunk_of_step(const Work& w, int step) {
  return C::kReverse ? w.num_chunks - 1 - step : step;
}

// Valid rows of a chunk, at most 16; not above 0 past the end of the sequence.
__device__ inline int chunk_rows(const Work& w, int chunk) {
  const std::int64_t left = w.span.length - static_cast<std::int64_t>(chunk) * kChunk;
  return left < kChunk ? static_cast<int>(left) : kChunk;
}

}  // namespace kda::cuda::hopper
