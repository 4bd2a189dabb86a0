#include "view/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "view/statistics.h"
#include "view_test_support.h"

namespace kda::view {
namespace {

using testing::counting;
using testing::elements_of;
using testing::OwnedArray;
using Doubles = std::vector<double>;
using Shape = std::vector<std::int64_t>;

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Reduce, SmallArray_IsItself) {
  const OwnedArray a(counting(6), {2, 3});
  const Cells cells = reduce(a.array, 6);
  EXPECT_FALSE(cells.is_reduced());
  EXPECT_EQ(cells.shape, (Shape{2, 3}));
  EXPECT_EQ(cells.mean, (Doubles{0, 1, 2, 3, 4, 5}));
}

TEST(Reduce, LongAxis_IsJoinedToMeansWithExtremes) {
  const OwnedArray a(counting(10), {2, 5});
  const Cells cells = reduce(a.array, 6);
  ASSERT_EQ(cells.block, (Shape{1, 2}));
  EXPECT_EQ(cells.shape, (Shape{2, 3}));
  EXPECT_EQ(cells.mean, (Doubles{0.5, 2.5, 4, 5.5, 7.5, 9}));
  EXPECT_EQ(cells.low, (Doubles{0, 2, 4, 5, 7, 9}));
  EXPECT_EQ(cells.high, (Doubles{1, 3, 4, 6, 8, 9}));
}

TEST(Reduce, AnyShape_StaysUnderTheLimitAndKeepsTheExtremes) {
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{1000}, Shape{7, 333}, Shape{333, 7},
                             Shape{11, 13, 17}, Shape{1, 1, 2500}, Shape{50, 50, 1}}) {
    std::size_t count = 1;
    for (const std::int64_t dim : shape)
      count *= static_cast<std::size_t>(dim);
    const OwnedArray a(counting(count), shape);
    for (const std::int64_t limit : {1, 2, 10, 100}) {
      const Cells cells = reduce(a.array, limit);
      EXPECT_LE(cells.mean.size(), static_cast<std::size_t>(limit));
      EXPECT_GE(cells.mean.size(), 1U);
      EXPECT_EQ(*std::min_element(cells.low.begin(), cells.low.end()), 0);
      EXPECT_EQ(*std::max_element(cells.high.begin(), cells.high.end()),
                static_cast<double>(count - 1));
    }
  }
}

TEST(Reduce, TransposedArray_IsReadInItsOwnOrder) {
  const OwnedArray a(counting(6), {2, 3});
  EXPECT_EQ(reduce(transposed(a.array, Shape{1, 0}), 6).mean, (Doubles{0, 3, 1, 4, 2, 5}));
}

TEST(Reduce, NotFiniteValues_AreLeftOut) {
  const OwnedArray a({1, std::nanf(""), 3, kInf, kInf, std::nanf("")}, {6});
  const Cells cells = reduce(a.array, 3);
  EXPECT_EQ(cells.mean[0], 1);
  EXPECT_EQ(cells.mean[1], 3);
  EXPECT_TRUE(std::isnan(cells.mean[2]));
  EXPECT_EQ(nested_json(cells.mean, cells.shape), "[1,3,null]");
}

TEST(Reduce, EmptyArray_HasNoCells) {
  const OwnedArray a({}, {0, 4});
  const Cells cells = reduce(a.array, 10);
  EXPECT_TRUE(cells.mean.empty());
  EXPECT_EQ(nested_json(cells.mean, cells.shape), "[]");
}

TEST(Statistics, CountAndMoments) {
  const OwnedArray a({1, 2, 3, 6, kInf, -kInf, std::nanf("")}, {7});
  const Statistics s = statistics_of(a.array);
  EXPECT_EQ(s.elements, 7);
  EXPECT_EQ(s.read, 7);
  EXPECT_EQ(s.finite, 4);
  EXPECT_EQ(s.nans, 1);
  EXPECT_EQ(s.positive_infinities, 1);
  EXPECT_EQ(s.negative_infinities, 1);
  EXPECT_EQ(s.min, 1);
  EXPECT_EQ(s.max, 6);
  EXPECT_DOUBLE_EQ(s.mean, 3);
  EXPECT_DOUBLE_EQ(s.std, std::sqrt(14.0 / 4));
}

TEST(Statistics, LargeMean_LosesNoDigits) {
  std::vector<float> values(1000, 16777216.0F);
  values.back() = 16777218.0F;
  const OwnedArray a(values, {1000});
  EXPECT_NEAR(statistics_of(a.array).std, 2 * std::sqrt(0.001 * 0.999), 1e-9);
}

TEST(Statistics, NothingFinite_IsNullInJson) {
  const OwnedArray a({std::nanf("")}, {1});
  EXPECT_NE(to_json(statistics_of(a.array)).find("\"min\": null"), std::string::npos);
}

TEST(Sampled, EveryKth_UnderTheLimit) {
  const OwnedArray a(counting(100), {10, 10});
  std::vector<std::int64_t> steps;
  const Array part = sampled(a.array, 25, steps);
  EXPECT_EQ(steps, (Shape{2, 2}));
  EXPECT_EQ(part.shape, (Shape{5, 5}));
  EXPECT_EQ(elements_of(part)[6], 22);
}

}  // namespace
}  // namespace kda::view
