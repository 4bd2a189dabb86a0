// Central differences against analytic gradients.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "support/host_tensor.h"

namespace kda::test {

// d loss / d x by (loss(x + eps) - loss(x - eps)) / (2 eps), element by element.
inline HostTensor central_differences(HostTensor* x, const std::function<double()>& loss,
                                      double eps = 1e-6) {
  HostTensor gradient(x->shape);
  for (std::size_t i = 0; i < x->data.size(); ++i) {
    const double saved = x->data[i];
    x->data[i] = saved + eps;
    const double above = loss();
    x->data[i] = saved - eps;
    const double below = loss();
    x->data[i] = saved;
    gradient.data[i] = (above - below) / (2 * eps);
  }
  return gradient;
}

// |analytic - numeric| <= atol + rtol |numeric| everywhere. Returns the largest difference.
inline double expect_gradient(const std::string& name, const HostTensor& analytic,
                              const HostTensor& numeric, double atol, double rtol) {
  double worst = 0.0;
  EXPECT_EQ(analytic.shape, numeric.shape) << name;
  for (std::size_t i = 0; i < numeric.data.size(); ++i) {
    const double difference = std::abs(analytic.data[i] - numeric.data[i]);
    worst = std::max(worst, difference);
    EXPECT_LE(difference, atol + rtol * std::abs(numeric.data[i]))
        << name << "[" << i << "]: analytic " << analytic.data[i] << ", numeric "
        << numeric.data[i];
    if (::testing::Test::HasFailure()) break;
  }
  return worst;
}

}  // namespace kda::test
