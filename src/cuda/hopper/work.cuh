// Work items: one sequence or segment of one, one value head and, where the value columns are
// split, one part.
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
  int segment = 0;
  bool is_map = false;     // the segment's map in place of its end
  std::int64_t place = 0;  // its matrix among the segments' ends and maps
};

// 64-token blocks [first, first + count) of a segment.
struct SegmentBlocks {
  int first = 0;
  int count = 0;
};
__device__ inline SegmentBlocks segment_blocks(std::int64_t length, int segments, int segment) {
  const int blocks = static_cast<int>((length + kBlockTokens - 1) / kBlockTokens);
  const int each = (blocks + segments - 1) / segments;
  const int first = min(each * segment, blocks);
  return {first, min(each, blocks - first)};
}

template <typename C>
__device__ inline Work work_at(const ChunkArgs& args, std::int64_t item) {
  const int parts = args.shape.V / (64 * C::kValueGroups);
  // A map counts as one more head. 32-bit divisions: a launch has no more items than that.
  const auto heads = static_cast<std::uint32_t>(args.shape.HV * parts * (C::kMaps ? 2 : 1));
  const auto segments = static_cast<std::uint32_t>(args.segments - (C::kMaps ? 1 : 0));
  Work w;
  const std::uint32_t whole = static_cast<std::uint32_t>(item) / heads;
  const std::uint32_t n = segments == 1 ? whole : whole / segments;
  w.n = n;
  w.segment = static_cast<int>(whole - n * segments);
  int rest = static_cast<int>(static_cast<std::uint32_t>(item) - whole * heads);
  if constexpr (C::kMaps) {
    w.is_map = rest >= args.shape.HV * parts;
    if (w.is_map) rest -= args.shape.HV * parts;
  }
  w.hv = rest / parts;
  w.v0 = (rest - w.hv * parts) * 64 * C::kValueGroups;
  w.place = (w.n * (args.segments - 1) + w.segment) * args.shape.HV + w.hv;
  if constexpr (C::kMaps && C::kReverse) ++w.segment;  // all but the first
  if (args.map.offsets == nullptr) {
    w.span = {w.n, 0, args.map.T, w.n * args.map.per_row};
  } else {
    w.span = sequence_at(args.map, w.n);
  }
  if (args.segments > 1) {
    const SegmentBlocks blocks = segment_blocks(w.span.length, args.segments, w.segment);
    const std::int64_t first = static_cast<std::int64_t>(blocks.first) * kBlockTokens;
    w.span.begin += first;
    w.span.length =
        min(w.span.length - first, static_cast<std::int64_t>(blocks.count) * kBlockTokens);
    w.span.first_chunk += blocks.first;
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

// A matrix of the segments' ends (or maps: transposed).
__device__ inline Tensor segment_matrix(const ChunkArgs& args, float* all, std::int64_t place,
                                        bool transposed) {
  Tensor t;
  const std::int64_t K = args.shape.K;
  const std::int64_t V = args.shape.V;
  t.data = all + place * K * V;
  t.s2 = transposed ? 1 : V;
  t.s3 = transposed ? K : 1;
  return t;
}

// Valid rows of a chunk, at most 16; not above 0 past the end of the sequence.
__device__ inline int chunk_rows(const Work& w, int chunk) {
  const std::int64_t left = w.span.length - static_cast<std::int64_t>(chunk) * kChunk;
  return left < kChunk ? static_cast<int>(left) : kChunk;
}

}  // namespace kda::cuda::hopper
