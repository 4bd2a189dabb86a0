#include "ref/gva_fold.h"

#include <gtest/gtest.h>

namespace kda::ref {
namespace {

Matrix<double> filled(double value) {
  Matrix<double> m(2, 3);
  for (std::int64_t t = 0; t < 2; ++t) {
    for (std::int64_t k = 0; k < 3; ++k)
      m(t, k) = value * static_cast<double>(10 * t + k + 1);
  }
  return m;
}

TEST(GvaFold, ContiguousGroups_AreSummed) {
  const auto folded =
      fold_value_heads<double>({filled(1), filled(10), filled(100), filled(1000)}, 2);
  ASSERT_EQ(folded.size(), 2U);
  EXPECT_EQ(folded[0](1, 2), 11 * 13.0);  // heads 0 and 1, not 0 and 2
  EXPECT_EQ(folded[1](1, 2), 1100 * 13.0);
}

TEST(GvaFold, GroupOfOne_IsTheIdentity) {
  const auto folded = fold_value_heads<double>({filled(1), filled(10)}, 1);
  ASSERT_EQ(folded.size(), 2U);
  EXPECT_EQ(folded[1](0, 0), 10.0);
}

}  // namespace
}  // namespace kda::ref
