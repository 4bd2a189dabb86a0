// Accuracy of the vector functions, in units of the last place of the exact result.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/math_test.cpp"
// clang-format off: this order is Highway's
#include "cpu/targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::cpu {
namespace HWY_NAMESPACE {

// n is a multiple of the largest vector.
void map_exp(const float* x, float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kLanes)
    store(exp(load(x + i)), y + i);
}
void map_expm1(const float* x, float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kLanes)
    store(expm1_small(load(x + i)), y + i);
}
void map_softplus(const float* x, float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kLanes)
    store(softplus(load(x + i)), y + i);
}
void map_sigmoid(const float* x, float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kLanes)
    store(sigmoid(load(x + i)), y + i);
}
void map_slope(const float* x, float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kLanes)
    store(sigmoid_with_slope(load(x + i)).slope, y + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "../cpu/simd_targets.h"
#include "support/random.h"

namespace kda::cpu {
HWY_EXPORT(map_exp);
HWY_EXPORT(map_expm1);
HWY_EXPORT(map_softplus);
HWY_EXPORT(map_sigmoid);
HWY_EXPORT(map_slope);

void call_exp(const float* x, float* y, std::size_t n) { HWY_DYNAMIC_DISPATCH(map_exp)(x, y, n); }
void call_expm1(const float* x, float* y, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(map_expm1)(x, y, n);
}
void call_softplus(const float* x, float* y, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(map_softplus)(x, y, n);
}
void call_sigmoid(const float* x, float* y, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(map_sigmoid)(x, y, n);
}
void call_slope(const float* x, float* y, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(map_slope)(x, y, n);
}
}  // namespace kda::cpu

namespace kda::test {
namespace {

using Call = void (*)(const float*, float*, std::size_t);

// Every binade between tiny and `high`, both signs where `low` allows, and an even grid.
std::vector<float> sweep(double low, double high) {
  std::vector<float> x;
  for (int i = 0; i <= 200000; ++i) {
    x.push_back(static_cast<float>(low + (high - low) * i / 200000.0));
  }
  Random random(3);
  for (int exponent = -126; exponent < 8; ++exponent) {
    for (int i = 0; i < 200; ++i) {
      const double magnitude = std::ldexp(1.0 + random.uniform(), exponent);
      if (magnitude <= high) x.push_back(static_cast<float>(magnitude));
      if (-magnitude >= low) x.push_back(static_cast<float>(-magnitude));
    }
  }
  while (x.size() % 16 != 0)
    x.push_back(0.0F);
  return x;
}

double ulp_of(double exact) {
  const float near = std::abs(static_cast<float>(exact));
  if (near < std::numeric_limits<float>::min()) return 0x1p-149;
  return static_cast<double>(std::nextafter(near, std::numeric_limits<float>::infinity()) - near);
}

// Largest error over results that are normal numbers.
double max_ulp(Call call, const std::vector<float>& x, double (*exact)(double)) {
  std::vector<float> y(x.size());
  call(x.data(), y.data(), x.size());
  double worst = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double want = exact(static_cast<double>(x[i]));
    if (std::abs(want) < 1.2e-38) {
      EXPECT_NEAR(static_cast<double>(y[i]), want, 3e-45) << "x = " << x[i];
      continue;
    }
    const double error = std::abs(static_cast<double>(y[i]) - want) / ulp_of(want);
    EXPECT_TRUE(std::isfinite(error)) << "x = " << x[i] << " gives " << y[i];
    worst = std::max(worst, error);
  }
  return worst;
}

double exact_exp(double x) { return std::exp(x); }
double exact_expm1(double x) { return std::expm1(x); }
double exact_softplus(double x) {
  return x > 0.0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}
double exact_sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double exact_slope(double x) { return exact_sigmoid(x) * exact_sigmoid(-x); }

void expect_within(Call call, double low, double high, double (*exact)(double), double bound) {
  for_each_simd_target([&](const char* target) {
    const double worst = max_ulp(call, sweep(low, high), exact);
    std::printf("  %-8s max error %.2f ulp\n", target, worst);
    EXPECT_LE(worst, bound);
  });
}

TEST(Math_Exp, WithinOneAndAHalfUlp) { expect_within(cpu::call_exp, -87.3, 88.7, exact_exp, 1.5); }
TEST(Math_Expm1, WithinTwoUlpNearZero) {
  expect_within(cpu::call_expm1, -0.3465, 0.3465, exact_expm1, 2.0);
}
TEST(Math_Softplus, WithinThreeUlp) {
  expect_within(cpu::call_softplus, -87.0, 100.0, exact_softplus, 3.0);
}
TEST(Math_Sigmoid, WithinThreeUlp) {
  expect_within(cpu::call_sigmoid, -87.0, 100.0, exact_sigmoid, 3.0);
}
TEST(Math_SigmoidSlope, WithinFiveUlpWhereOneMinusSigmoidWouldCancel) {
  expect_within(cpu::call_slope, -87.0, 87.0, exact_slope, 5.0);
}

TEST(Math_Extremes, InfinitiesAndNaN) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float top = std::numeric_limits<float>::max();
  std::vector<float> x = {inf, -inf, nan, top, -top, 200.0F, -200.0F, 0.0F};
  x.resize(16, 0.0F);
  std::vector<float> y(x.size());
  for_each_simd_target([&](const char*) {
    cpu::call_exp(x.data(), y.data(), x.size());
    EXPECT_EQ(y[0], inf);
    EXPECT_EQ(y[1], 0.0F);
    EXPECT_TRUE(std::isnan(y[2]));
    EXPECT_EQ(y[3], inf);
    EXPECT_EQ(y[4], 0.0F);
    EXPECT_EQ(y[5], inf);
    EXPECT_EQ(y[6], 0.0F);
    EXPECT_EQ(y[7], 1.0F);
    cpu::call_softplus(x.data(), y.data(), x.size());
    EXPECT_EQ(y[1], y[6]);
    EXPECT_TRUE(std::isnan(y[2]));
    EXPECT_EQ(y[5], 200.0F);
    EXPECT_EQ(y[6], 0.0F);
    cpu::call_sigmoid(x.data(), y.data(), x.size());
    EXPECT_EQ(y[0], 1.0F);
    EXPECT_EQ(y[1], 0.0F);
    EXPECT_TRUE(std::isnan(y[2]));
    EXPECT_EQ(y[4], 0.0F);
    EXPECT_EQ(y[7], 0.5F);
    cpu::call_slope(x.data(), y.data(), x.size());
    EXPECT_EQ(y[0], 0.0F);
    EXPECT_EQ(y[1], 0.0F);
    EXPECT_EQ(y[7], 0.25F);
  });
}

}  // namespace
}  // namespace kda::test
#endif  // HWY_ONCE
