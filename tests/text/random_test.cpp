#include "text/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace kda::text {
namespace {

// The order of documents is part of what a checkpoint means: these values must never change.
TEST(Random_SplitMix64, KnownSequence) {
  SplitMix64 random(0);  // first values of the published generator with seed 0
  EXPECT_EQ(random.next(), 0xE220A8397B1DCDAFull);
  EXPECT_EQ(random.next(), 0x6E789E6AA1B965F4ull);
  EXPECT_EQ(random.next(), 0x06C45D188009454Full);
}

TEST(Random_Shuffle, FixedForEver) {
  EXPECT_EQ(shuffled_indices(8, 42, 0), (std::vector<std::uint32_t>{5, 7, 4, 0, 6, 2, 3, 1}));
  EXPECT_EQ(shuffled_indices(8, 42, 1), (std::vector<std::uint32_t>{3, 7, 0, 1, 4, 6, 5, 2}));
  EXPECT_TRUE(shuffled_indices(0, 42, 0).empty());
  EXPECT_EQ(shuffled_indices(1, 42, 0), std::vector<std::uint32_t>{0});
}

TEST(Random_Shuffle, IsAPermutationAndDependsOnBoth) {
  auto a = shuffled_indices(1000, 1, 0);
  EXPECT_NE(a, shuffled_indices(1000, 1, 1));
  EXPECT_NE(a, shuffled_indices(1000, 2, 0));
  EXPECT_EQ(a, shuffled_indices(1000, 1, 0));
  std::sort(a.begin(), a.end());
  for (std::uint32_t i = 0; i < a.size(); ++i)
    ASSERT_EQ(a[i], i);
}

TEST(Random_Shuffle, AllPermutationsAreEquallyLikely) {
  std::map<std::vector<std::uint32_t>, int> counts;
  constexpr int kDraws = 24'000;
  for (int seed = 0; seed < kDraws; ++seed) {
    ++counts[shuffled_indices(4, static_cast<std::uint64_t>(seed), 5)];
  }
  ASSERT_EQ(counts.size(), 24u);
  double chi2 = 0;
  for (const auto& [order, n] : counts)
    chi2 += (n - 1000.0) * (n - 1000.0) / 1000.0;
  EXPECT_LT(chi2, 49.7);  // 23 degrees of freedom, p = 0.001
}

TEST(Random_Below, StaysBelowAndIsUniform) {
  SplitMix64 random(7);
  std::vector<int> counts(10);
  for (int i = 0; i < 100'000; ++i)
    ++counts[random.below(10)];
  for (const int n : counts)
    EXPECT_NEAR(n, 10'000, 500);
  EXPECT_EQ(random.below(1), 0u);
  for (int i = 0; i < 100; ++i)
    EXPECT_LT(random.below(~0ull), ~0ull);
}

}  // namespace
}  // namespace kda::text
