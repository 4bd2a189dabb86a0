// Into how many segments a sequence is cut, and where.
//
// The bits of a result depend on it, and those of a sequence must not depend on its neighbours: the
// rule looks at the value heads, their number and size, and at the sequence's own length, at
// nothing else (not at the batch, not at the GPU). It is made for one or two long sequences per
// call. Of P segments each pass has P - 1 pieces per head: the first one all but the last segment,
// of which the first rank has outputs and the others are run for their end and map, the second one
// all but the first. Of heads of 128 two blocks share a piece (in the first pass one makes the end,
// the other the map), of heads of 64 it is one block's (two warpgroups do).
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define KDA_HOPPER_BOTH __host__ __device__
#else
#define KDA_HOPPER_BOTH
#endif

namespace kda::cuda::hopper {

inline constexpr std::int64_t kCutFromTokens = 4096;  // shorter sequences are left whole
inline constexpr std::int64_t kBlocks = 132;          // of a pass over one sequence, at most

// Segments of a sequence that is long enough: as many as let a pass of one sequence fill a GPU
// once. More heads than 16 fill a GPU by themselves; those of 64 take half of the blocks.
KDA_HOPPER_BOTH constexpr int most_segments(std::int64_t heads, std::int64_t head_size) {
  const bool narrow = head_size == 64;
  if (heads < 1 || heads > (narrow ? 32 : 16)) return 1;
  const std::int64_t most = kBlocks / (narrow ? 1 : 2) / heads + 1;  // (P - 1) heads pieces
  const std::int64_t limit = narrow ? 17 : 9;
  return static_cast<int>(most < limit ? most : limit);
}

KDA_HOPPER_BOTH constexpr int segment_count(int most, std::int64_t tokens) {
  return tokens < kCutFromTokens ? 1 : most;
}

// Pieces per head of a sequence of `segments` segments in the first pass; the second has one piece
// less than there are segments.
KDA_HOPPER_BOTH constexpr int first_pass_pieces(int segments) {
  return segments == 1 ? 1 : segments - 1;
}

// 64-token blocks [first, first + count) of a segment.
struct SegmentBlocks {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

// The segment of rank `rank`, in the order in which a scan meets them, of a sequence of fewer than
// 2^28 blocks (32-bit divisions: kernels make them). All are equal but for one block: rank 0, which
// alone has outputs in the first pass, takes as long per token there as an end and a map.
KDA_HOPPER_BOTH constexpr SegmentBlocks segment_blocks(std::int64_t tokens, int segments, int rank,
                                                       bool reverse) {
  const auto blocks = static_cast<std::uint32_t>((tokens + 63) >> 6);
  if (segments == 1) return {0, blocks};
  const auto all = static_cast<std::uint32_t>(segments);
  const auto at = static_cast<std::uint32_t>(rank);
  const std::uint32_t each = blocks / all;
  const std::uint32_t longer = blocks - each * all;  // ranks with a block more
  const std::uint32_t before = at * each + (at < longer ? at : longer);
  const std::uint32_t count = each + (at < longer ? 1 : 0);
  return {reverse ? blocks - before - count : before, count};
}

}  // namespace kda::cuda::hopper
