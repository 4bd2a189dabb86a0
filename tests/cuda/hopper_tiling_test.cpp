// What the Hopper kernels choose is plain host code: whole heads or pairs of blocks, and segments.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "cuda/hopper/segment_rule.h"
#include "cuda/hopper/tiling.h"

namespace kda::test {
namespace {

namespace hopper = cuda::hopper;

using hopper::HeadForm;
constexpr std::int64_t kHeadSizes[] = {64, 128};

TEST(HopperTiling, BlocksShareAHead_WhereThatTakesLessThanRoundsOfWholeHeads) {
  constexpr std::int64_t kSms = 132;
  for (std::int64_t heads : {1, 16, 64, 66, 133, 198})
    EXPECT_EQ(hopper::form_of_heads(heads, kSms), HeadForm::kPair) << heads;
  for (std::int64_t heads : {67, 96, 132, 256, 300, 768})
    EXPECT_EQ(hopper::form_of_heads(heads, kSms), HeadForm::kWhole) << heads;
  EXPECT_EQ(hopper::form_of_heads(1, 1), HeadForm::kWhole);  // one multiprocessor: no pairs
}

TEST(HopperSegmentRule, APassOfOneSequence_FillsTheGpuOnce) {
  struct Expected {
    std::int64_t heads;
    int wide, narrow;
  };
  for (const Expected& e : {Expected{0, 1, 1},
                            {1, 9, 17},
                            {8, 9, 17},
                            {11, 7, 13},
                            {12, 6, 12},
                            {16, 5, 9},
                            {17, 1, 8},
                            {32, 1, 5},
                            {33, 1, 1},
                            {1000, 1, 1}}) {
    EXPECT_EQ(hopper::most_segments(e.heads, 128), e.wide) << e.heads;
    EXPECT_EQ(hopper::most_segments(e.heads, 64), e.narrow) << e.heads;
  }
  for (const std::int64_t size : kHeadSizes) {
    const std::int64_t blocks = size / 64;
    for (std::int64_t heads = 1; heads <= (size == 64 ? 32 : 16); ++heads) {
      const int most = hopper::most_segments(heads, size);
      EXPECT_GE(most, 3) << heads;  // the chain has a link
      EXPECT_LE(blocks * hopper::first_pass_pieces(most) * heads, 132) << heads;
      if (most < (size == 64 ? 17 : 9)) {  // one more would not fit
        EXPECT_GT(blocks * hopper::first_pass_pieces(most + 1) * heads, 132) << heads;
      }
    }
  }
  EXPECT_EQ(hopper::first_pass_pieces(1), 1);
}

TEST(HopperSegmentRule, ShortSequences_StayWhole) {
  EXPECT_EQ(hopper::segment_count(5, 0), 1);
  EXPECT_EQ(hopper::segment_count(5, 4095), 1);
  EXPECT_EQ(hopper::segment_count(5, 4096), 5);
  EXPECT_EQ(hopper::segment_count(1, 65536), 1);
}

// In the order of ranks every block comes once, and no segment is empty.
TEST(HopperSegmentRule, Segments_CoverASequence) {
  for (const bool reverse : {false, true}) {
    for (int most = 2; most <= 17; ++most) {
      for (std::int64_t tokens : {std::int64_t{4096}, std::int64_t{4097}, std::int64_t{4160},
                                  std::int64_t{5000}, std::int64_t{8191}, std::int64_t{65536},
                                  std::int64_t{1000000}, std::int64_t{(1LL << 28) - 1} * 64}) {
        const auto blocks = static_cast<std::uint32_t>((tokens + 63) / 64);
        const auto all = static_cast<std::uint32_t>(most);
        std::uint32_t edge = reverse ? blocks : 0;
        for (int rank = 0; rank < most; ++rank) {
          const auto at = hopper::segment_blocks(tokens, most, rank, reverse);
          EXPECT_GE(at.count, blocks / all) << most << " segments of " << tokens;
          EXPECT_LE(at.count, (blocks + all - 1) / all) << most << " segments of " << tokens;
          EXPECT_EQ(reverse ? at.first + at.count : at.first, edge);
          edge = reverse ? at.first : at.first + at.count;
        }
        EXPECT_EQ(edge, reverse ? 0U : blocks);
      }
    }
  }
  // T 8192 in five segments: the first ranks are longer.
  EXPECT_EQ(hopper::segment_blocks(8192, 5, 2, false).count, 26U);
  EXPECT_EQ(hopper::segment_blocks(8192, 5, 3, false).count, 25U);
  EXPECT_EQ(hopper::segment_blocks(130, 1, 0, true).count, 3U);
}

}  // namespace
}  // namespace kda::test
