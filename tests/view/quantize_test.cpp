#include "view/quantize.h"

#include <cmath>
#include <limits>

#include "view_test_support.h"

namespace kda::view {
namespace {

using test::expect_error;
using testing::OwnedArray;

std::vector<int> mapped(const Int8Rule& rule, const std::vector<float>& values) {
  const OwnedArray a(values, {static_cast<std::int64_t>(values.size())});
  const Int8Map map(rule, io::StDtype::kF32, statistics_of(a.array));
  std::vector<int> out;
  for (const float value : values)
    out.push_back(map(static_cast<double>(value)));
  return out;
}

// Expected values: normalize_to_int8 of the PyPI package tensorlens 0.0.3 on the same f32 array.
TEST(Quantize, FourRules_AreTensorLens) {
  const std::vector<float> x{-2.0F, -0.75F, -0.1F, 0.0F, 0.3F, 0.9F, 4.0F};
  EXPECT_EQ(mapped({Normalization::kClip, -1, 1}, x),
            (std::vector<int>{-127, -95, -12, 0, 38, 114, 127}));
  EXPECT_EQ(mapped({Normalization::kClip, -0.5, 2}, x),
            (std::vector<int>{-31, -31, -6, 0, 19, 57, 127}));
  EXPECT_EQ(mapped({Normalization::kMinMax, -1, 1}, x),
            (std::vector<int>{-128, -74, -47, -43, -30, -4, 127}));
  EXPECT_EQ(mapped({Normalization::kZScore, -1, 1}, x),
            (std::vector<int>{-57, -26, -10, -8, 0, 13, 90}));
  EXPECT_EQ(mapped({Normalization::kNone, -1, 1}, {-0.75F, 0.3F, 1.0F}),
            (std::vector<int>{-95, 38, 127}));
}

TEST(Quantize, ConstantTensor_IsZero) {
  EXPECT_EQ(mapped({Normalization::kMinMax, -1, 1}, {3, 3, 3}), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(mapped({Normalization::kZScore, -1, 1}, {3, 3, 3}), (std::vector<int>{0, 0, 0}));
}

TEST(Quantize, OddValues_AreFixed) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x{-1, 1, std::nanf(""), inf, -inf};
  EXPECT_EQ(mapped({Normalization::kClip, -1, 1}, x), (std::vector<int>{-127, 127, 0, 127, -127}));
  EXPECT_EQ(mapped({Normalization::kMinMax, -1, 1}, x),
            (std::vector<int>{-128, 127, 0, 127, -128}));
  EXPECT_EQ(mapped({Normalization::kNone, -1, 1}, {5, -5, std::nanf("")}),
            (std::vector<int>{127, -128, 0}));
}

TEST(Quantize, BadRules_AreRefused) {
  expect_error(ErrorCode::kInvalidArgument, {"clip, minmax, zscore or none", "max"},
               [] { normalization_from("max"); });
  expect_error(ErrorCode::kInvalidArgument, {"LOW <= HIGH"}, [] {
    check({Normalization::kClip, 1, -1});
  });
  expect_error(ErrorCode::kInvalidArgument, {"not both 0"}, [] {
    check({Normalization::kClip, 0, 0});
  });
  EXPECT_EQ(name_of(normalization_from("zscore")), "zscore");
}

}  // namespace
}  // namespace kda::view
