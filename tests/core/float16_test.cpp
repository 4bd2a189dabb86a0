// Every 16-bit value, and every rounding boundary between neighbours.
#include "core/float16.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kda::core {
namespace {

TEST(Float16, Bf16_EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto stored = static_cast<std::uint16_t>(bits);
    const float value = bf16_to_float(stored);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value)))) << bits;
    } else {
      ASSERT_EQ(float_to_bf16(value), stored) << bits;
    }
  }
}

TEST(Float16, F16_EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto stored = static_cast<std::uint16_t>(bits);
    const float value = f16_to_float(stored);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(value)))) << bits;
    } else {
      ASSERT_EQ(float_to_f16(value), stored) << bits;
    }
  }
}

// f16 by its definition, without bit tricks.
TEST(Float16, F16_ValuesFollowTheFormat) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const int sign = (bits & 0x8000U) != 0 ? -1 : 1;
    const int exponent = static_cast<int>((bits >> 10U) & 31U);
    const int mantissa = static_cast<int>(bits & 1023U);
    if (exponent == 31) continue;
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    ASSERT_EQ(static_cast<double>(f16_to_float(static_cast<std::uint16_t>(bits))), sign * magnitude)
        << bits;
  }
}

// Between two neighbours: below the middle rounds down, above it up, the middle to the even one.
template <typename ToFloat, typename FromFloat>
void check_boundaries(ToFloat to_float, FromFloat from_float, std::uint32_t infinity) {
  for (std::uint32_t bits = 0; bits + 1 < infinity; ++bits) {
    const float low = to_float(static_cast<std::uint16_t>(bits));
    const float high = to_float(static_cast<std::uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;  // exact: f32 has the extra bit
    const std::uint32_t even = (bits & 1U) == 0 ? bits : bits + 1;
    ASSERT_EQ(from_float(middle), even) << bits;
    ASSERT_EQ(from_float(std::nextafter(middle, low)), bits) << bits;
    ASSERT_EQ(from_float(std::nextafter(middle, high)), bits + 1) << bits;
    ASSERT_EQ(from_float(-middle), even | 0x8000U) << bits;
  }
}

TEST(Float16, Bf16_RoundsToNearestEven) { check_boundaries(bf16_to_float, float_to_bf16, 0x7f80U); }
TEST(Float16, F16_RoundsToNearestEven) { check_boundaries(f16_to_float, float_to_f16, 0x7c00U); }

TEST(Float16, Extremes) {
  EXPECT_EQ(float_to_f16(65504.0F), 0x7bffU);
  EXPECT_EQ(float_to_f16(65519.99F), 0x7bffU);
  EXPECT_EQ(float_to_f16(65520.0F), 0x7c00U);  // the middle to 65536, which is not there
  EXPECT_EQ(float_to_f16(65536.0F), 0x7c00U);
  EXPECT_EQ(float_to_f16(-INFINITY), 0xfc00U);
  EXPECT_EQ(float_to_f16(0x1p-25F), 0U);  // half of the smallest, to even
  EXPECT_EQ(float_to_f16(0x1.8p-25F), 1U);
  EXPECT_EQ(float_to_f16(-0.0F), 0x8000U);
  EXPECT_EQ(float_to_bf16(65536.0F), 0x4780U);
  EXPECT_EQ(float_to_bf16(3.4e38F), 0x7f80U);  // above the largest bf16
  EXPECT_EQ(float_to_bf16(INFINITY), 0x7f80U);
  EXPECT_EQ(float_to_bf16(-0.0F), 0x8000U);
  // The bits of a NaN that would be rounded up to zero stay a NaN.
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7f800001U)))));
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7fffffffU)))));
  EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(std::bit_cast<float>(0x7f800001U)))));
}

}  // namespace
}  // namespace kda::core
