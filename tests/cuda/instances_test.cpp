// The list of instances is plain host code: what it says must hang together.
#include "cuda/tiling/instances.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "cuda/tiling/scan.h"

namespace kda::cuda {
namespace {

using Pairs = std::set<std::pair<std::int64_t, std::int64_t>>;

const Pairs kScans = {
#define KDA_MMA_SCAN(K, W) {K, W},
#include "cuda/instances.def"
};
const Pairs kLocals = {
#define KDA_MMA_LOCAL(K, V) {K, V},
#include "cuda/instances.def"
};
const std::set<std::int64_t> kBounded = {
#define KDA_MMA_BOUNDED(D) D,
#include "cuda/instances.def"
};

TEST(Instances, EverySizeUpTo128_HasTheSmallestHeadThatHoldsIt) {
  for (std::int64_t dim = 1; dim <= 128; ++dim) {
    const std::int64_t head = mma_head(dim);
    EXPECT_GE(head, dim);
    for (const std::int64_t other : kMmaHeads) {
      EXPECT_FALSE(other >= dim && other < head) << dim << " fits into " << other;
    }
  }
  EXPECT_EQ(mma_head(129), 0);
  EXPECT_EQ(mma_head(256), 0);
}

TEST(Instances, EveryPairOfHeads_HasALocalKernel) {
  for (const std::int64_t K : kMmaHeads) {
    EXPECT_TRUE(kBounded.contains(K)) << K;
    for (const std::int64_t V : kMmaHeads)
      EXPECT_TRUE(kLocals.contains({K, V})) << K << "x" << V;
  }
}

TEST(Instances, EveryScanThatTheTilingChooses_Exists) {
  for (const std::int64_t K : kMmaHeads) {
    for (int V = 1; V <= 128; ++V) {
      for (std::int64_t heads : {1, 16, 64, 96, 132, 1000}) {
        EXPECT_TRUE(kScans.contains({K, scan_warps(heads, V, 132)})) << K << " " << V;
      }
    }
  }
}

}  // namespace
}  // namespace kda::cuda
