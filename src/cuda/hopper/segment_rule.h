// Into how many segments a sequence is cut, and where.
//
// The bits of a result depend on it, and those of a sequence must not depend on its neighbours: the
// rule looks at the value heads, their number and size, and at the sequence's own length, at
// nothing else (not at the batch, not at the GPU). It is made for one or two long sequences per
// call. With P segments the first pass has 2 P - 3 pieces per head (the first segment, and of all
// others but the last their end and their map), the second P - 1. Where end and map are one piece,
// of two blocks or of a block with two update warpgroups, the first pass has P - 1, too.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define KDA_HOPPER_BOTH __host__ __device__
#else
#define KDA_HOPPER_BOTH
#endif

namespace kda::cuda::hopper {

inline constexpr std::int64_t kCutFromTokens = 4096;  // shorter sequences are left whole
inline constexpr std::int64_t kPieces = 132;          // of the first pass of one sequence, at most

// How a piece of a first pass is worked on: heads of 128 by a block, end and map apart, or by two
// blocks (a switch of the process), one for each; heads of 64 by a block with a warpgroup for each.
// Nothing can split a head of 64 among two blocks: it has one update warpgroup.
enum class PieceForm { kBlock, kPair, kNarrow };

KDA_HOPPER_BOTH constexpr PieceForm piece_form(std::int64_t head_size, bool pairs) {
  if (head_size == 64) return PieceForm::kNarrow;
  return pairs ? PieceForm::kPair : PieceForm::kBlock;
}

// Segments of a sequence that is long enough: as many as let the first pass of one sequence fill a
// GPU once. More heads than 16 fill a GPU by themselves; those of 64 take half of the blocks.
KDA_HOPPER_BOTH constexpr int most_segments(std::int64_t heads, PieceForm form) {
  const bool narrow = form == PieceForm::kNarrow;
  if (heads < 1 || heads > (narrow ? 32 : 16)) return 1;
  // (2 P - 3) heads <= kPieces; blocks (P - 1) heads <= kPieces.
  const std::int64_t most = form == PieceForm::kBlock ? (kPieces + 3 * heads) / (2 * heads)
                                                      : kPieces / (narrow ? 1 : 2) / heads + 1;
  const std::int64_t limit = narrow ? 17 : 9;
  return static_cast<int>(most < limit ? most : limit);
}

KDA_HOPPER_BOTH constexpr int segment_count(int most, std::int64_t tokens) {
  return tokens < kCutFromTokens ? 1 : most;
}

// Pieces per head of a sequence of `segments` segments in the first pass, where end and map of a
// segment are two pieces, or one (`joint`); the second pass has one piece less than there are
// segments.
KDA_HOPPER_BOTH constexpr int first_pass_pieces(int segments, bool joint) {
  if (segments == 1) return 1;
  return joint ? segments - 1 : 2 * segments - 3;
}

// 64-token blocks [first, first + count) of a segment.
struct SegmentBlocks {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

// The segment of rank `rank`, in the order in which a scan meets them, of a sequence of fewer than
// 2^28 blocks (32-bit divisions: kernels make them). Rank 0 alone has outputs in the first pass.
// With a head per block it has about two thirds of the others, which are equal; with pairs nine
// eighths: two blocks have half of its columns each, and all columns of an end or a map. With heads
// of 64 all are equal but for one block, as there may be few blocks to a segment.
KDA_HOPPER_BOTH constexpr SegmentBlocks segment_blocks(std::int64_t tokens, int segments, int rank,
                                                       bool reverse, PieceForm form) {
  const auto blocks = static_cast<std::uint32_t>((tokens + 63) >> 6);
  if (segments == 1) return {0, blocks};
  const auto all = static_cast<std::uint32_t>(segments);
  const auto at = static_cast<std::uint32_t>(rank);
  std::uint32_t before = 0;
  std::uint32_t count = 0;
  if (form == PieceForm::kNarrow) {
    const std::uint32_t each = blocks / all;
    const std::uint32_t longer = blocks - each * all;  // ranks with a block more
    before = at * each + (at < longer ? at : longer);
    count = each + (at < longer ? 1 : 0);
  } else {
    const std::uint32_t each = form == PieceForm::kPair
                                   ? (8 * blocks + 4 * all) / (8 * all + 1)
                                   : (6 * blocks + 3 * all - 1) / (2 * (3 * all - 1));
    const std::uint32_t zero = blocks - (all - 1) * each;
    before = at == 0 ? 0 : zero + (at - 1) * each;
    count = at == 0 ? zero : each;
  }
  return {reverse ? blocks - before - count : before, count};
}

}  // namespace kda::cuda::hopper
