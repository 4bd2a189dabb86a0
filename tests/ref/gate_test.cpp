#include "ref/gate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/record.h"

namespace kda::ref {
namespace {

using test::record_difference;

TEST(Gate, Extremes_AreFinite) {
  for (float x : {-1e30F, -1000.0F, -100.0F, 0.0F, 100.0F, 1000.0F, 1e30F}) {
    for (bool safe : {false, true}) {
      GateChannel<float> gate;
      gate.safe = safe;
      gate.lower_bound = -5.0F;
      EXPECT_TRUE(std::isfinite(gate.value(x))) << x << " safe " << safe;
      EXPECT_LE(gate.value(x), 0.0F);
      EXPECT_TRUE(std::isfinite(gate.slopes(x).dx)) << x << " safe " << safe;
      EXPECT_TRUE(std::isfinite(gate.slopes(x).da_log)) << x << " safe " << safe;
      if (safe) {
        EXPECT_GE(gate.value(x), -5.0F);
      }
    }
  }
}

TEST(Gate, Slopes_KeepDigitsWhereTheGateSaturates) {
  GateChannel<float> gate;
  gate.safe = true;
  gate.lower_bound = -5.0F;
  // d/dx -5 sigmoid(x) at 20 is -5 e^-20; 1 - sigmoid(20) in float would be 0.
  EXPECT_NEAR(gate.slopes(20.0F).dx / (-5.0F * std::exp(-20.0F)), 1.0F, 1e-6F);
}

TEST(Gate, Slopes_MatchCentralDifferences) {
  for (bool safe : {false, true}) {
    for (double a_log : {-1.0, 0.0, 1.5}) {
      for (double x : {-30.0, -2.0, -0.1, 0.4, 3.0, 19.0, 21.0}) {
        GateChannel<double> gate;
        gate.safe = safe;
        gate.lower_bound = -5.0;
        gate.bias = 0.25;
        const auto value = [&](double a, double at) {
          gate.exp_a = std::exp(a);
          return gate.value(at);
        };
        const double eps = 1e-5;
        const double dx = (value(a_log, x + eps) - value(a_log, x - eps)) / (2 * eps);
        const double da = (value(a_log + eps, x) - value(a_log - eps, x)) / (2 * eps);
        gate.exp_a = std::exp(a_log);
        record_difference(std::abs(gate.slopes(x).dx - dx));
        record_difference(std::abs(gate.slopes(x).da_log - da));
        EXPECT_NEAR(gate.slopes(x).dx, dx, 1e-9) << "safe " << safe << " a " << a_log << " x " << x;
        EXPECT_NEAR(gate.slopes(x).da_log, da, 2e-8)
            << "safe " << safe << " a " << a_log << " x " << x;
      }
    }
  }
}

TEST(Gate, Softplus_IsExactOnBothSides) {
  EXPECT_EQ(softplus(800.0), 800.0);
  EXPECT_NEAR(softplus(-50.0) / std::exp(-50.0), 1.0, 1e-15);
  EXPECT_NEAR(softplus(20.0), 20.0 + std::exp(-20.0), 1e-14);
}

}  // namespace
}  // namespace kda::ref
