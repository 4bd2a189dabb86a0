#include "io/number_text.h"

#include <gtest/gtest.h>

#include <limits>

namespace kda::io {
namespace {

TEST(NumberText, IsShortAndReadsBack) {
  EXPECT_EQ(number_text(0), "0");
  EXPECT_EQ(number_text(-1), "-1");
  EXPECT_EQ(number_text(0.0003), "0.0003");
  EXPECT_EQ(number_text(1e-9), "1e-09");  // not 0.000000
  EXPECT_EQ(number_text(-1e-9), "-1e-09");
  EXPECT_EQ(number_text(1e300), "1e+300");
  EXPECT_EQ(std::stod(number_text(0.1 + 0.2)), 0.1 + 0.2);
  EXPECT_EQ(number_text(std::numeric_limits<double>::quiet_NaN()), "nan");
  EXPECT_EQ(number_text(-std::numeric_limits<double>::infinity()), "-inf");
}

}  // namespace
}  // namespace kda::io
