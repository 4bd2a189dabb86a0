// What the tests of the layers on CUDA devices share.
#pragma once

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <string>

#include "binding/functional.h"
#include "kda/error.h"
#include "model/model_test_support.h"

namespace kda::test {

// Parameter: the type of the activations. Skips where there is no device or no library for it.
class DeviceTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  // Before the first use of torch: its CUDA hooks are fixed by that.
  static void SetUpTestSuite() {
    try {
      binding::load_cuda_library();
      if (!at::hasCUDA()) missing() = "no CUDA device";
    } catch (const Error& error) {
      missing() = error.what();
    }
  }
  void SetUp() override {
    if (!missing().empty()) GTEST_SKIP() << missing();
  }
  static std::string& missing() {
    static std::string reason;
    return reason;
  }
};

inline double relative_rmse(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor difference = got.detach().to(at::kCPU).to(at::kDouble) - want.detach();
  return (difference.square().mean().sqrt() / (want.detach().square().mean().sqrt() + 1e-30))
      .item<double>();
}

}  // namespace kda::test
