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
  EXPECT_EQ(hopper::most_segments(0), 1);
  EXPECT_EQ(hopper::most_segments(1), 9);
  EXPECT_EQ(hopper::most_segments(8), 9);
  EXPECT_EQ(hopper::most_segments(12), 7);
  EXPECT_EQ(hopper::most_segments(16), 5);
  for (std::int64_t heads : {17, 32, 64, 96, 1000})
    EXPECT_EQ(hopper::most_segments(heads), 1) << heads;
  for (std::int64_t heads = 1; heads <= 16; ++heads) {
    const int most = hopper::most_segments(heads);
    EXPECT_GE(most, 3) << heads;
    EXPECT_LE(hopper::first_pass_pieces(most, false) * heads, 132) << heads;
    EXPECT_EQ(hopper::first_pass_pieces(most, true), most - 1) << heads;
  }
  EXPECT_EQ(hopper::first_pass_pieces(1, true), 1);
  EXPECT_EQ(hopper::first_pass_pieces(1, false), 1);
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
    for (int most = 2; most <= 9; ++most) {
      for (std::int64_t tokens : {4096, 4097, 4160, 5000, 8191, 65536, 1000000}) {
        const auto blocks = static_cast<std::uint32_t>((tokens + 63) / 64);
        std::uint32_t edge = reverse ? blocks : 0;
        std::uint32_t longest = 0;
        for (int rank = 0; rank < most; ++rank) {
          const auto at = hopper::segment_blocks(tokens, most, rank, reverse);
          EXPECT_GE(at.count, 1) << most << " segments of " << tokens << ", rank " << rank;
          EXPECT_EQ(reverse ? at.first + at.count : at.first, edge);
          edge = reverse ? at.first : at.first + at.count;
          longest = std::max(longest, at.count);
        }
        EXPECT_EQ(edge, reverse ? 0U : blocks);
        const auto all = static_cast<std::uint32_t>(most);
        EXPECT_LE(longest, 3 * blocks / (3 * all - 1) + all) << most << " segments of " << tokens;
      }
    }
  }
  EXPECT_EQ(hopper::segment_blocks(130, 1, 0, true).count, 3U);
}

}  // namespace
}  // namespace kda::test
