// Work items: one sequence or segment of one, one value head and, where the value columns are
// split, one part.
#pragma once

#include "cuda/hopper/layout.cuh"
#include "cuda/hopper/segment_rule.h"
#include "cuda/tile/chunk.cuh"

namespace kda::cuda::hopper {

struct Work {
  SequenceSpan span;
  std::int64_t n = 0;
  int hv = 0;
  int v0 = 0;  // first value column
  int num_chunks = 0;
  int rank = 0;            // which segment, in the scan's order
  bool quiet = false;      // run for what it makes of a state, without outputs: its map, or else
  bool is_map = false;     // its end
  bool is_last = true;     // the scan of the sequence ends here
  std::int64_t place = 0;  // its matrix among the segments' ends and maps
};

// What a piece of a pass is: a segment and what it is run for.
__device__ inline void take_piece(const Segments& segments, int count, int which, Work* w) {
  if (segments.pass == 1) {
    w->rank = (which + 1) / 2;
    w->quiet = which > 0;
    w->is_map = which > 0 && which % 2 == 0;
  } else if (segments.pass == 2) {
    w->rank = which + 1;
  }
  w->is_last = w->rank == count - 1;
}

template <typename C>
__device__ inline Work work_at(const ChunkArgs& args, std::int64_t item) {
  // 32-bit divisions: a launch has no more items than that.
  const auto parts = static_cast<std::uint32_t>(args.shape.V / (64 * C::kValueGroups));
  const auto heads = static_cast<std::uint32_t>(args.shape.HV) * parts;
  const Segments& segments = args.segments;
  const std::uint32_t piece = static_cast<std::uint32_t>(item) / heads;
  const std::uint32_t rest = static_cast<std::uint32_t>(item) - piece * heads;
  Work w;
  w.hv = static_cast<int>(rest / parts);
  w.v0 = static_cast<int>(rest - rest / parts * parts) * 64 * C::kValueGroups;
  w.n = piece;
  if (segments.pass != 0) {
    const auto each =
        static_cast<std::uint32_t>(segments.pass == 1 ? 2 * segments.most - 3 : segments.most - 1);
    w.n = piece / each;
    take_piece(segments, segments.most, static_cast<int>(piece - piece / each * each), &w);
    w.place = (w.n * (segments.most - 1) + w.rank) * args.shape.HV + w.hv;
  }
  if (args.map.offsets == nullptr) {
    w.span = {w.n, 0, args.map.T, w.n * args.map.per_row};
  } else {
    w.span = sequence_at(args.map, w.n);
  }
  if (segments.pass != 0) {
    const SegmentBlocks blocks = segment_blocks(w.span.length, segments.most, w.rank, C::kReverse);
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
