// Into how many segments a sequence is cut, and where.
//
// The bits of a result depend on it, and those of a sequence must not depend on its neighbours: the
// rule looks at the value heads, their number and size, and at the sequence's own length, at
// nothing else (not at the batch, not at the GPU). It is made for one or two long sequences per
// call. With P segments
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

// Who works on a piece: a block with a head of 128 or of 64 (kNarrow), or two with one of 128.
// A head of 64 has one update warpgroup, which nothing can split, whatever the switch for pairs.
enum class PieceForm { kBlock, kNarrow, kPair };

KDA_HOPPER_BOTH constexpr PieceForm piece_form(std::int64_t head_size, bool pairs) {
  if (head_size == 64) return PieceForm::kNarrow;
  return pairs ? PieceForm::kPair : PieceForm::kBlock;
}

// Segments of a sequence that is long enough.
KDA_HOPPER_BOTH constexpr int most_segments(std::int64_t heads, PieceForm form) {
  if (heads < 1 || heads > kCutUpToHeads) return 1;
  // (2 P - 3) heads <= kPieces; 2 (P - 1) heads <= kPieces.
  const std::int64_t most =
      form == PieceForm::kPair ? kPieces / 2 / heads + 1 : (kPieces + 3 * heads) / (2 * heads);
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

// Of all ranks but 0, rounded to the nearest. Rank 0 has what is left, about two thirds of that: in
// the first pass it alone has outputs. With heads of 64, whose outputs cost less, it has seven
// eighths; with pairs nine eighths: two blocks have half of its columns each, and all columns of an
// end or a map.
KDA_HOPPER_BOTH constexpr std::uint32_t blocks_of_a_segment(std::uint32_t blocks, std::uint32_t all,
                                                            PieceForm form) {
  switch (form) {
    case PieceForm::kBlock:
      return (6 * blocks + 3 * all - 1) / (2 * (3 * all - 1));
    case PieceForm::kNarrow:
      return (8 * blocks + (8 * all - 1) / 2) / (8 * all - 1);
    case PieceForm::kPair:
      break;
  }
  return (8 * blocks + 4 * all) / (8 * all + 1);
}

// The segment of rank `rank`, in the order in which a scan meets them, of a sequence of fewer than
// 2^28 blocks (32-bit divisions: kernels make them).
KDA_HOPPER_BOTH constexpr SegmentBlocks segment_blocks(std::int64_t tokens, int segments, int rank,
                                                       bool reverse, PieceForm form) {
  const auto blocks = static_cast<std::uint32_t>((tokens + 63) >> 6);
  if (segments == 1) return {0, blocks};
  const auto all = static_cast<std::uint32_t>(segments);
  const auto at = static_cast<std::uint32_t>(rank);
  const std::uint32_t each = blocks_of_a_segment(blocks, all, form);
  const std::uint32_t zero = blocks - (all - 1) * each;
  const std::uint32_t before = at == 0 ? 0 : zero + (at - 1) * each;
  const std::uint32_t count = at == 0 ? zero : each;
  return {reverse ? blocks - before - count : before, count};
}

}  // namespace kda::cuda::hopper
