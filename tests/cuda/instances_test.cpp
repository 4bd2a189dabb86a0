// The list of instances is plain host code: what it says must hang together.
#include "cuda/tiling/instances.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "cuda/tiling/architectures.h"
#include "cuda/tiling/scan.h"

namespace kda::cuda {
namespace {

using Pairs = std::set<std::pair<std::int64_t, std::int64_t>>;

const Pairs kScans = {
#define KDA_MMA_SCAN(K, W) {K, W},
#include "cuda/instances.def"
};
const std::set<std::int64_t> kBounded = {
#define KDA_MMA_BOUNDED(D) D,
#include "cuda/instances.def"
};

TEST(Instances, EveryPairOfSizesUpTo128_HasItsLocalKernel) {
  for (std::int64_t K = 1; K <= 128; ++K) {
    for (std::int64_t V = 1; V <= 128; ++V) {
      const MmaHeads heads = mma_heads(K, V);
      EXPECT_TRUE(heads.K >= K && heads.V >= V && has_local(heads)) << K << "x" << V;
      for (const MmaHeads& other : kMmaLocals) {
        EXPECT_FALSE(other.K >= K && other.V >= V && other.K * other.V < heads.K * heads.V)
            << K << "x" << V << " fits into " << other.K << "x" << other.V;
      }
    }
  }
}

TEST(Instances, SizesOfTheTable_AreNotPadded) {
  for (const std::int64_t D : {32, 64, 96, 128}) {
    EXPECT_EQ(mma_heads(D, D), (MmaHeads{D, D}));
    EXPECT_TRUE(kBounded.contains(D)) << D;
  }
  EXPECT_EQ(mma_heads(256, 256).K, 256);
}

TEST(Instances, WiderHeads_HaveScansOfTheirOwn) {
  for (const auto& [K, V] : Pairs{{129, 64}, {64, 129}, {256, 256}, {200, 100}, {32, 256}}) {
    const MmaHeads heads = mma_heads(K, V);
    EXPECT_GE(heads.K, K);
    EXPECT_EQ(heads.V, V);
    EXPECT_FALSE(has_local(heads)) << K << "x" << V;
  }
}

TEST(Instances, EveryScanThatTheTilingChooses_Exists) {
  for (std::int64_t K = 1; K <= 256; ++K) {
    for (int V = 1; V <= 256; ++V) {
      const std::int64_t head = mma_heads(K, V).K;
      for (std::int64_t heads : {1, 16, 64, 96, 132, 1000}) {
        EXPECT_TRUE(kScans.contains({head, scan_warps(heads, V, head, 132)})) << K << " " << V;
      }
    }
  }
}

TEST(Architectures, MachineCode_RunsOnItsMajorVersionOnly) {
  EXPECT_EQ(no_code_reason("80-real;90a-real", 8, 0), "");
  EXPECT_EQ(no_code_reason("80-real;90a-real", 8, 9), "");
  EXPECT_EQ(no_code_reason("80-real;90a-real", 9, 0), "");
  EXPECT_EQ(no_code_reason("80-real,90a-real", 10, 0),
            "the GPU has compute capability 10.0, this build has code for 8.0, 9.0a "
            "(see KDA_CUDA_ARCHS)");
  EXPECT_EQ(no_code_reason("86-real", 8, 0),
            "the GPU has compute capability 8.0, this build has code for 8.6 "
            "(see KDA_CUDA_ARCHS)");
  EXPECT_EQ(
      no_code_reason("80-real;90a-real", 7, 5),
      "the GPU has compute capability 7.5, this build has code for 8.0, 9.0a; GPUs before 8.0 "
      "are not supported");
}

TEST(Architectures, SuffixesAndPtx_CoverWhatTheySay) {
  EXPECT_EQ(no_code_reason("100a-real", 10, 0), "");
  EXPECT_NE(no_code_reason("100a-real", 10, 3), "");
  EXPECT_EQ(no_code_reason("100f-real", 10, 3), "");
  EXPECT_NE(no_code_reason("100f-real", 12, 0), "");
  EXPECT_EQ(no_code_reason("80", 12, 0), "");
  EXPECT_EQ(no_code_reason("80-virtual", 9, 0), "");
  EXPECT_EQ(no_code_reason("90-virtual", 8, 9),
            "the GPU has compute capability 8.9, this build has code for 9.0 and later "
            "(see KDA_CUDA_ARCHS)");
}

}  // namespace
}  // namespace kda::cuda
