// What the Hopper kernels choose is plain host code: whole or half heads, and segments.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "cuda/hopper/segment_rule.h"
#include "cuda/hopper/tiling.h"

namespace kda::test {
namespace {

namespace hopper = cuda::hopper;

using hopper::HeadForm;
using hopper::PieceForm;

constexpr PieceForm kForms[] = {PieceForm::kBlock, PieceForm::kNarrow, PieceForm::kPair};

TEST(HopperTiling, HeadsAreSplitWhileMultiprocessorsAreFree) {
  constexpr std::int64_t kSms = 132;
  for (std::int64_t heads : {1, 16, 64, 66})
    EXPECT_EQ(hopper::form_of_heads(heads, kSms, false), HeadForm::kHalves) << heads;
  for (std::int64_t heads : {67, 96, 132, 150, 256, 768})
    EXPECT_EQ(hopper::form_of_heads(heads, kSms, false), HeadForm::kWhole) << heads;
}

TEST(HopperTiling, BlocksShareAHead_WhereThatTakesLessThanRoundsOfWholeHeads) {
  constexpr std::int64_t kSms = 132;
  for (std::int64_t heads : {1, 16, 64, 66, 133, 198, 300})
    EXPECT_EQ(hopper::form_of_heads(heads, kSms, true), HeadForm::kPair) << heads;
  for (std::int64_t heads : {67, 96, 132, 256, 768})
    EXPECT_EQ(hopper::form_of_heads(heads, kSms, true), HeadForm::kWhole) << heads;
  EXPECT_NE(hopper::form_of_heads(1, 1, true), HeadForm::kPair);  // one multiprocessor: no pairs
}

TEST(HopperSegmentRule, FirstPassOfOneSequence_FillsTheGpuOnce) {
  struct Expected {
    std::int64_t heads;
    int alone, pairs, narrow;
  };
  for (const Expected& e : {Expected{0, 1, 1, 1},
                            {1, 9, 9, 17},
                            {8, 9, 9, 17},
                            {11, 7, 7, 13},
                            {12, 7, 6, 12},
                            {16, 5, 5, 9},
                            {17, 1, 1, 8},
                            {32, 1, 1, 5},
                            {33, 1, 1, 1},
                            {1000, 1, 1, 1}}) {
    EXPECT_EQ(hopper::most_segments(e.heads, PieceForm::kBlock), e.alone) << e.heads;
    EXPECT_EQ(hopper::most_segments(e.heads, PieceForm::kPair), e.pairs) << e.heads;
    EXPECT_EQ(hopper::most_segments(e.heads, PieceForm::kNarrow), e.narrow) << e.heads;
  }
  for (const PieceForm form : kForms) {
    const bool joint = form != PieceForm::kBlock;
    const int blocks = form == PieceForm::kPair ? 2 : 1;
    for (std::int64_t heads = 1; heads <= (form == PieceForm::kNarrow ? 32 : 16); ++heads) {
      const int most = hopper::most_segments(heads, form);
      EXPECT_GE(most, 3) << heads;  // the chain has a link
      EXPECT_LE(blocks * hopper::first_pass_pieces(most, joint) * heads, 132) << heads;
      if (most < (form == PieceForm::kNarrow ? 17 : 9)) {  // one more would not fit
        EXPECT_GT(blocks * hopper::first_pass_pieces(most + 1, joint) * heads, 132) << heads;
      }
    }
  }
  EXPECT_EQ(hopper::first_pass_pieces(1, true), 1);
  EXPECT_EQ(hopper::first_pass_pieces(1, false), 1);
}

// Whatever the switch says, two blocks never share a head of 64.
TEST(HopperSegmentRule, NarrowHeads_AreNeverInPairs) {
  EXPECT_EQ(hopper::piece_form(64, false), PieceForm::kNarrow);
  EXPECT_EQ(hopper::piece_form(64, true), PieceForm::kNarrow);
  EXPECT_EQ(hopper::piece_form(128, false), PieceForm::kBlock);
  EXPECT_EQ(hopper::piece_form(128, true), PieceForm::kPair);
}

TEST(HopperSegmentRule, ShortSequences_StayWhole) {
  EXPECT_EQ(hopper::segment_count(5, 0), 1);
  EXPECT_EQ(hopper::segment_count(5, 4095), 1);
  EXPECT_EQ(hopper::segment_count(5, 4096), 5);
  EXPECT_EQ(hopper::segment_count(1, 65536), 1);
}

// In the order of ranks every block comes once, and no segment is empty.
TEST(HopperSegmentRule, Segments_CoverASequence) {
  for (int how = 0; how < 6; ++how) {
    const bool reverse = how % 2 == 1;
    const PieceForm form = kForms[how / 2];
    for (int most = 2; most <= (form == PieceForm::kNarrow ? 17 : 9); ++most) {
      for (std::int64_t tokens : {std::int64_t{4096}, std::int64_t{4097}, std::int64_t{4160},
                                  std::int64_t{5000}, std::int64_t{8191}, std::int64_t{65536},
                                  std::int64_t{1000000}, std::int64_t{(1LL << 28) - 1} * 64}) {
        const auto blocks = static_cast<std::uint32_t>((tokens + 63) / 64);
        std::uint32_t edge = reverse ? blocks : 0;
        std::uint32_t longest = 0;
        for (int rank = 0; rank < most; ++rank) {
          const auto at = hopper::segment_blocks(tokens, most, rank, reverse, form);
          EXPECT_GE(at.count, 1) << most << " segments of " << tokens << ", rank " << rank;
          EXPECT_EQ(reverse ? at.first + at.count : at.first, edge);
          edge = reverse ? at.first : at.first + at.count;
          longest = std::max(longest, at.count);
        }
        EXPECT_EQ(edge, reverse ? 0U : blocks);
        const auto all = static_cast<std::uint32_t>(most);
        if (form == PieceForm::kNarrow) {
          EXPECT_EQ(longest, (blocks + all - 1) / all) << most << " segments of " << tokens;
          continue;
        }
        const std::uint32_t bound = form == PieceForm::kPair ? blocks / (8 * all + 1) * 9 + 9
                                                             : blocks / (3 * all - 1) * 3 + 3;
        EXPECT_LE(longest, bound + all) << most << " segments of " << tokens;
      }
    }
  }
  // T 8192 in five segments: rank 0 is the shorter one, in pairs the longer one; of heads of 64 the
  // first ranks are longer if any.
  const auto count = [](int rank, PieceForm form) {
    return hopper::segment_blocks(8192, 5, rank, false, form).count;
  };
  EXPECT_EQ(count(0, PieceForm::kBlock), 20U);
  EXPECT_EQ(count(1, PieceForm::kBlock), 27U);
  EXPECT_EQ(count(0, PieceForm::kNarrow), 26U);
  EXPECT_EQ(count(4, PieceForm::kNarrow), 25U);
  EXPECT_EQ(count(0, PieceForm::kPair), 28U);
  EXPECT_EQ(count(1, PieceForm::kPair), 25U);
  EXPECT_EQ(hopper::segment_blocks(130, 1, 0, true, PieceForm::kBlock).count, 3U);
}

}  // namespace
}  // namespace kda::test
