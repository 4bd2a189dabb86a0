#include "ref/l2norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kda/ops/l2norm.h"
#include "support/gradcheck.h"
#include "support/host_view.h"
#include "support/random.h"

namespace kda::test {
namespace {

// eps belongs to the sum of squares: at amplitude 1e-4 and K = 128 the sum is about 1.3e-6, and
// adding eps to the mean instead would be wrong by most of the value.
TEST(L2Norm, TinyRows_HaveEpsInTheSum) {
  HostTensor x({1, 1, 1, 128}, 1e-4);
  HostTensor y(x.shape);
  HostTensor rstd({1, 1, 1});
  l2norm_forward({f64_view(std::as_const(x)), kL2NormEps, f64_view(y), f64_view(rstd)},
                 {.backend = Backend::kRef});
  const double expected = 1.0 / std::sqrt(128 * 1e-8 + 1e-6);
  EXPECT_NEAR(rstd.data[0] / expected, 1.0, 1e-14);
  EXPECT_NEAR(y.data[5] / (1e-4 * expected), 1.0, 1e-14);
}

TEST(L2Norm, ZeroRow_IsZeroWithAFiniteGradient) {
  HostTensor x({1, 1, 1, 4});
  HostTensor dy(x.shape, 1.0);
  HostTensor y(x.shape, 7.0);
  HostTensor dx(x.shape, 7.0);
  l2norm_forward({f64_view(std::as_const(x)), kL2NormEps, f64_view(y), {}},
                 {.backend = Backend::kRef});
  l2norm_backward(
      {f64_view(std::as_const(x)), f64_view(std::as_const(dy)), kL2NormEps, f64_view(dx)},
      {.backend = Backend::kRef});
  EXPECT_EQ(y.data, std::vector<double>(4, 0.0));
  for (double d : dx.data)
    EXPECT_NEAR(d, 1000.0, 1e-9);
}

TEST(L2Norm, Gradient_MatchesCentralDifferences) {
  Random random(5);
  HostTensor x({2, 3, 2, 6});
  HostTensor dy(x.shape);
  for (double& value : x.data)
    value = random.normal();
  for (double& value : dy.data)
    value = random.normal();
  HostTensor dx(x.shape);
  l2norm_backward(
      {f64_view(std::as_const(x)), f64_view(std::as_const(dy)), kL2NormEps, f64_view(dx)},
      {.backend = Backend::kRef});
  const auto loss = [&] {
    HostTensor y(x.shape);
    l2norm_forward({f64_view(std::as_const(x)), kL2NormEps, f64_view(y), {}},
                   {.backend = Backend::kRef});
    double sum = 0.0;
    for (std::size_t i = 0; i < y.data.size(); ++i)
      sum += y.data[i] * dy.data[i];
    return sum;
  };
  expect_gradient("dx", dx, central_differences(&x, loss), 1e-8, 1e-8);
}

}  // namespace
}  // namespace kda::test
