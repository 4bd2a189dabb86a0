#include "io/mxfp4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kda/error.h"

namespace kda::io {
namespace {

std::vector<float> values_of(const std::vector<unsigned>& packed,
                             const std::vector<unsigned>& scales, std::int64_t columns) {
  std::vector<std::byte> bytes;
  for (const unsigned byte : packed)
    bytes.push_back(static_cast<std::byte>(byte));
  std::vector<std::byte> scale_bytes;
  for (const unsigned scale : scales)
    scale_bytes.push_back(static_cast<std::byte>(scale));
  std::vector<float> out(2 * bytes.size(), -77.0F);
  dequantise_mxfp4(bytes, scale_bytes, columns, out);
  return out;
}

TEST(Mxfp4_Values, AllElementsLowHalfFirst) {
  std::vector<unsigned> packed(16);
  for (unsigned i = 0; i < 8; ++i) {
    packed[i] = (2 * i) | ((2 * i + 1) << 4);  // elements 0..15 in order
    packed[8 + i] = packed[i];
  }
  const auto out = values_of(packed, {127}, 32);
  const std::vector<float> magnitudes{0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(out[i], magnitudes[i]);
    EXPECT_EQ(out[i + 8], -magnitudes[i]);
    EXPECT_EQ(out[i + 16], magnitudes[i]);
  }
  EXPECT_TRUE(std::signbit(out[8]));
}

TEST(Mxfp4_Scales, OneForEachBlockOfEachRow) {
  const std::vector<unsigned> ones(64, 0x22);  // 1.0 everywhere, 2 rows of 64
  const auto out = values_of(ones, {127, 128, 125, 137}, 64);
  EXPECT_EQ(out[0], 1.0F);
  EXPECT_EQ(out[31], 1.0F);
  EXPECT_EQ(out[32], 2.0F);
  EXPECT_EQ(out[64], 0.25F);
  EXPECT_EQ(out[127], 1024.0F);
}

TEST(Mxfp4_Scales, ExtremesAreExact) {
  const auto small = values_of(std::vector<unsigned>(16, 0x11), {0}, 32);
  EXPECT_EQ(small[0], std::ldexp(1.0F, -128));  // 0.5 * 2^-127, subnormal and exact
  const auto large = values_of(std::vector<unsigned>(16, 0x22), {254}, 32);
  EXPECT_EQ(large[0], std::ldexp(1.0F, 127));
  const auto nan = values_of(std::vector<unsigned>(16, 0x00), {255}, 32);
  EXPECT_TRUE(std::isnan(nan[0]));
}

TEST(Mxfp4_Sizes, AreChecked) {
  const std::vector<unsigned> bytes(16, 0);
  EXPECT_THROW(values_of(bytes, {127, 127}, 32), Error);
  EXPECT_THROW(values_of(bytes, {127}, 16), Error);
  EXPECT_THROW(values_of(bytes, {127}, 64), Error);
  EXPECT_THROW(values_of(bytes, {127}, 0), Error);
  EXPECT_THROW(values_of(bytes, {127}, -32), Error);
}

}  // namespace
}  // namespace kda::io
