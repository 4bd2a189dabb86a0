// The choice of block sizes is plain host code.
#include <gtest/gtest.h>

#include <vector>

#include "cuda/tiling/decode.h"
#include "cuda/tiling/scan.h"

namespace kda::cuda {
namespace {

constexpr std::int64_t kSms = 132;

TEST(ScanTiling, ChosenBlocks_CoverEveryColumn) {
  for (int V : {1, 16, 17, 32, 60, 64, 65, 100, 128}) {
    for (std::int64_t heads : {1, 8, 32, 64, 96, 132, 133, 1000}) {
      const int warps = scan_warps(heads, V, 128, kSms);
      EXPECT_TRUE(warps == 2 || warps == 4 || warps == 8) << warps;
      EXPECT_TRUE(warps == 2 || 8 * warps < V) << "half of " << warps << " warps idle, V=" << V;
    }
  }
}

TEST(ScanTiling, FewHeads_AreSplitOverTheGpu) {
  EXPECT_EQ(scan_warps(8, 128, 128, kSms), 2);
  EXPECT_EQ(scan_warps(32, 128, 128, kSms), 2);
  EXPECT_EQ(scan_warps(64, 128, 128, kSms), 4);
}

TEST(ScanTiling, BlocksOfNarrowKeyHeads_FitTheirInstances) {
  EXPECT_EQ(scan_warps(96, 96, 96, kSms), 6);
  EXPECT_EQ(scan_warps(768, 96, 96, kSms), 6);
  EXPECT_EQ(scan_warps(8, 96, 96, kSms), 2);
  EXPECT_EQ(scan_warps(96, 32, 32, kSms), 2);
}

TEST(ScanTiling, ManyHeads_ShareTheLoadsOfWholeRows) {
  EXPECT_EQ(scan_warps(96, 128, 128, kSms), 8);
  EXPECT_EQ(scan_warps(768, 128, 128, kSms), 8);
  EXPECT_EQ(scan_warps(768, 64, 128, kSms), 4);
}

// More heads never make the scan faster: the cost that the choice minimises is monotone.
TEST(ScanTiling, MoreHeads_NeverCostLess) {
  const auto cost = [](std::int64_t heads) {
    const int warps = scan_warps(heads, 128, 128, kSms);
    const std::int64_t blocks = heads * ((128 + 16 * warps - 1) / (16 * warps));
    return (blocks + kSms - 1) / kSms * scan_step_cost(warps);
  };
  for (std::int64_t heads = 1; heads < 600; ++heads)
    EXPECT_LE(cost(heads), cost(heads + 1)) << heads;
}

DecodeCall one_token(std::int64_t sequences, bool bf16_states, bool norm) {
  return {.sequences = sequences,
          .value_heads = 96,
          .one_token = true,
          .bf16_states = bf16_states,
          .norm = norm};
}

TEST(DecodeTiling, FewStates_AreServedAtOnce) {
  for (const bool bf16 : {false, true}) {
    for (const bool norm : {false, true}) {
      for (std::int64_t sequences : {1, 2, 5})
        EXPECT_TRUE(decodes_at_once(one_token(sequences, bf16, norm), kSms)) << sequences;
    }
  }
}

TEST(DecodeTiling, ManyStates_TakeTheFasterKernel) {
  EXPECT_FALSE(decodes_at_once(one_token(8, false, false), kSms));
  EXPECT_TRUE(decodes_at_once(one_token(64, false, false), kSms));
  EXPECT_FALSE(decodes_at_once(one_token(64, false, true), kSms));
  for (const bool norm : {false, true}) {
    EXPECT_TRUE(decodes_at_once(one_token(64, true, norm), kSms));
    EXPECT_FALSE(decodes_at_once(one_token(256, true, norm), kSms));
  }
}

TEST(DecodeTiling, OnlyOneTokenEachAndWhatAGridHolds_IsServedAtOnce) {
  DecodeCall call = one_token(1, false, false);
  call.one_token = false;
  EXPECT_FALSE(decodes_at_once(call, kSms));
  EXPECT_TRUE(decodes_at_once(one_token(65535, false, false), kSms));
  EXPECT_FALSE(decodes_at_once(one_token(65536, false, false), kSms));
}

}  // namespace
}  // namespace kda::cuda
