// Into how many segments a sequence is cut, and where.
//
// The bits of a result depend on it, and those of a sequence must not depend on its neighbours: the
// rule looks at the number of value heads and at the sequence's own length, at nothing else (not at
// the batch, not at the GPU). It is made for one or two long sequences per call. With P segments
// the first pass has 2 P - 3 pieces per head (the first segment, and of all others but the last
// their end and their map), the second P - 1. Where two blocks share a piece (`pairs`, a switch of
// the process) the first pass has P - 1, too: end and map are one.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define KDA_HOPPER_BOTH __host__ __device__
#else
#define KDA_HOPPER_BOTH
#endif

namespace kda::cuda::hopper {

inline constexpr std::int64_t kCutFromTokens = 4096;  // shorter sequences are left whole
inline constexpr std::int64_t kCutUpToHeads = 16;     // more heads fill a GPU by themselves
inline constexpr std::int64_t kMostSegments = 9;
inline constexpr std::int64_t kPieces = 132;  // of the first pass of one sequence, at most

// Segments of a sequence that is long enough.
KDA_HOPPER_BOTH constexpr int most_segments(std::int64_t heads, bool pairs) {
  if (heads < 1 || heads > kCutUpToHeads) return 1;
  // (2 P - 3) heads <= kPieces; 2 (P - 1) heads <= kPieces.
  const std::int64_t most = pairs ? kPieces / 2 / heads + 1 : (kPieces + 3 * heads) / (2 * heads);
  return static_cast<int>(most < kMostSegments ? most : kMostSegments);
}

KDA_HOPPER_BOTH constexpr int segment_count(int most, std::int64_t tokens) {
  return tokens < kCutFromTokens ? 1 : most;
}

// Pieces per head of a sequence of `segments` segments in the first pass, where end and map of a
// segment are two pieces, or one for two blocks (`pairs`); the second pass has one piece less than
// there are segments.
KDA_HOPPER_BOTH constexpr int first_pass_pieces(int segments, bool pairs) {
  if (segments == 1) return 1;
  return pairs ? segments - 1 : 2 * segments - 3;
}

// 64-token blocks [first, first + count) of a segment.
struct SegmentBlocks {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

// The segment of rank `rank`, in the order in which a scan meets them, of a sequence of fewer than
// 2^28 blocks (32-bit divisions: kernels make them). Rank 0 has about two thirds of the
// others, which are equal: in the first pass it alone has outputs. With pairs it has nine eighths:
// two blocks have half of its columns each, and all columns of an end or a map.
KDA_HOPPER_BOTH constexpr SegmentBlocks segment_blocks(std::int64_t tokens, int segments, int rank,
                                                       bool reverse, bool pairs) {
  const auto blocks = static_cast<std::uint32_t>((tokens + 63) >> 6);
  if (segments == 1) return {0, blocks};
  const auto all = static_cast<std::uint32_t>(segments);
  const auto at = static_cast<std::uint32_t>(rank);
  const std::uint32_t each = pairs ? (8 * blocks + 4 * all) / (8 * all + 1)
                                   : (6 * blocks + 3 * all - 1) / (2 * (3 * all - 1));
  const std::uint32_t zero = blocks - (all - 1) * each;
  const std::uint32_t before = at == 0 ? 0 : zero + (at - 1) * each;
  const std::uint32_t count = at == 0 ? zero : each;
  return {reverse ? blocks - before - count : before, count};
}

}  // namespace kda::cuda::hopper
