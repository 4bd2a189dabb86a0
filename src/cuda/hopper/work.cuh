// Work items: one sequence or segment of one, and one value head.
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
  int groups = 1;          // in a cluster: update warpgroups that have columns
  std::int64_t place = 0;  // its matrix among the segments' ends and maps
};

// Which of the blocks that share an item this one is.
template <typename C>
__device__ inline int block_rank() {
  return C::kCluster ? static_cast<int>(blockIdx.x) % 2 : 0;
}

template <typename C>
__device__ inline int first_work() {
  return static_cast<int>(blockIdx.x) / C::kBlocks;
}
// The item after `item`: blocks take them in turn, there and back, so that of items that get
// shorter all blocks have about the same.
template <typename C>
__device__ inline int next_work(int item) {
  const auto blocks = static_cast<std::uint32_t>(gridDim.x) / C::kBlocks;
  const std::uint32_t edge = (static_cast<std::uint32_t>(item) / blocks + 1) * blocks;
  return static_cast<int>(2 * edge - 1 - static_cast<std::uint32_t>(item));
}

// Items of a launch: packed calls know only on the device how many there are.
template <typename C>
__device__ inline int num_items_of(const ChunkArgs& args, int num_items) {
  const Segments& segments = args.segments;
  if (segments.counts == nullptr) return num_items;
  return segments.counts[segments.pass / 2] * args.shape.HV;
}

// (As an update warpgroup of kEndAndMap sees them: update_work.)
template <typename C>
__device__ inline Work work_at(const ChunkArgs& args, int item) {
  // 32-bit divisions: a launch has no more items than that.
  const auto heads = static_cast<std::uint32_t>(args.shape.HV);
  const Segments& segments = args.segments;
  const std::uint32_t piece = static_cast<std::uint32_t>(item) / heads;
  Work w;
  w.hv = static_cast<int>(static_cast<std::uint32_t>(item) - piece * heads);
  int which = 0;
  int cut = -1;
  w.n = piece;
  if (segments.counts != nullptr) {
    const Piece entry = segments.pieces[segments.pass / 2][piece];
    w.n = entry.n;
    which = entry.which;
    cut = entry.cut;
  } else if (segments.pass != 0) {
    const auto each = static_cast<std::uint32_t>(
        segments.pass == 1 ? first_pass_pieces(segments.most) : segments.most - 1);
    w.n = piece / each;
    which = static_cast<int>(piece - piece / each * each);
    cut = static_cast<int>(w.n);
  }
  w.span = sequence_at(args.map, w.n);
  if (cut >= 0) {
    w.rank = segments.pass == 1 ? which : which + 1;
    w.quiet = segments.pass == 1 && which > 0;
    w.is_map = w.quiet && block_rank<C>() == 1;  // the other block of the piece makes the end
    w.is_last = w.rank == segments.most - 1;
    w.place =
        (static_cast<std::int64_t>(cut) * (segments.most - 1) + w.rank) * args.shape.HV + w.hv;
    const SegmentBlocks blocks = segment_blocks(w.span.length, segments.most, w.rank, C::kReverse);
    const std::int64_t first = static_cast<std::int64_t>(blocks.first) * kBlockTokens;
    w.span.begin += first;
    w.span.length =
        min(w.span.length - first, static_cast<std::int64_t>(blocks.count) * kBlockTokens);
    w.span.first_chunk += blocks.first;
  }
  if constexpr (C::kCluster) {  // with outputs each block has half of the columns
    w.groups = w.quiet ? C::kValueGroups : 1;
    if (!w.quiet) w.v0 = 64 * block_rank<C>();
  }
  if constexpr (C::kReverse) {  // whole 64-token blocks: their last rows are written too
    w.num_chunks = static_cast<int>((w.span.length + kBlockTokens - 1) / kBlockTokens) *
                   (kBlockTokens / kChunk);
  } else {
    w.num_chunks = static_cast<int>((w.span.length + kChunk - 1) / kChunk);
  }
  return w;
}

template <typename C>
__device__ inline Work update_work(const ChunkArgs& args, int item, int group) {
  Work w = work_at<C>(args, item);
  if constexpr (C::kEndAndMap) w.is_map = w.quiet && group == 1;
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
