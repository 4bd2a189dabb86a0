// The layers' fused CUDA kernels against the composed forms in f64 on the host, from the same
// inputs; gradients by autograd on both sides.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <vector>

#include "model/cross_entropy.h"
#include "model/device_test_support.h"
#include "model/gated_norm.h"
#include "model/rms_norm.h"
#include "model/short_conv.h"
#include "model/swiglu.h"

namespace kda::test {
namespace {

using Tensors = std::vector<at::Tensor>;
using Function = std::function<Tensors(const Tensors&)>;

class DeviceLayers : public DeviceTest {};

Tensors leaves(const Tensors& values) {
  Tensors out;
  for (const at::Tensor& value : values)
    out.push_back(value.detach().clone().set_requires_grad(true));
  return out;
}

// Outputs, then gradients of sum(output * seed) with respect to every input.
Tensors run(const Function& f, const Tensors& inputs, const Tensors& seeds) {
  const Tensors in = leaves(inputs);
  Tensors out = f(in);
  torch::autograd::backward(out, seeds);
  for (const at::Tensor& leaf : in)
    out.push_back(leaf.grad());
  return out;
}

struct Layer {
  Function fused, composed;
  Tensors activations;  // f64; rounded to the activation dtype
  Tensors parameters;   // f64; f32 on the device
  Tensors seeds;        // of the outputs, f64
  std::vector<bool> wide_output;
};

void compare(const Layer& layer, at::ScalarType type, double bound) {
  Tensors host, device, host_seeds, device_seeds;
  for (const at::Tensor& value : layer.activations) {
    const at::Tensor rounded = value.to(type);
    host.push_back(rounded.to(at::kDouble));
    device.push_back(rounded.to(at::kCUDA));
  }
  for (const at::Tensor& value : layer.parameters) {
    const at::Tensor rounded = value.to(at::kFloat);
    host.push_back(rounded.to(at::kDouble));
    device.push_back(rounded.to(at::kCUDA));
  }
  for (std::size_t i = 0; i < layer.seeds.size(); ++i) {
    const at::Tensor rounded = layer.seeds[i].to(layer.wide_output[i] ? at::kFloat : type);
    host_seeds.push_back(rounded.to(at::kDouble));
    device_seeds.push_back(rounded.to(at::kCUDA));
  }
  const Tensors want = run(layer.composed, host, host_seeds);
  const Tensors got = run(layer.fused, device, device_seeds);
  const Tensors again = run(layer.fused, device, device_seeds);
  ASSERT_EQ(want.size(), got.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_LT(relative_rmse(got[i], want[i]), bound) << "quantity " << i;
    EXPECT_TRUE(same_bits(got[i], again[i])) << "quantity " << i << " differs between two runs";
  }
}

double bound_of(at::ScalarType type) { return type == at::kFloat ? 2e-6 : 4e-3; }

TEST_P(DeviceLayers, ShortConvEqualsComposed) {
  const at::Tensor cu = index({0, 1, 3, 6, 6, 136, 141});
  const at::Tensor cu_device = cu.to(at::kCUDA);
  for (const std::int64_t width : {2, 3, 4}) {
    for (const std::int64_t channels : {20, 21, 1032}) {
      Layer layer;
      layer.fused = [&](const Tensors& in) {
        return Tensors{model::short_conv(in[0], in[1], cu_device)};
      };
      layer.composed = [&](const Tensors& in) {
        return Tensors{model::short_conv_composed(in[0], in[1], cu)};
      };
      layer.activations = {random_tensor({141, channels}, 1)};
      layer.parameters = {random_tensor({channels, 1, width}, 2)};
      layer.seeds = {random_tensor({141, channels}, 3)};
      layer.wide_output = {false};
      compare(layer, GetParam(), bound_of(GetParam()));
    }
  }
}

TEST_P(DeviceLayers, CachedConvEqualsOnePiece) {
  const at::Tensor x = random_tensor({40, 24}, 1).to(GetParam()).to(at::kCUDA);
  const at::Tensor w = random_tensor({24, 1, 4}, 2, at::kFloat).to(at::kCUDA);
  const at::Tensor whole = model::short_conv(x, w, index({0, 40}).to(at::kCUDA));
  at::Tensor window = at::zeros({1, 3, 24}, w.options());
  std::int64_t done = 0;
  for (const std::int64_t piece : {1, 2, 0, 5, 1, 31}) {
    const at::Tensor y = model::short_conv_cached(x.narrow(0, done, piece), w,
                                                  index({0, piece}).to(at::kCUDA), window);
    EXPECT_TRUE(same_bits(y, whole.narrow(0, done, piece))) << "piece at " << done;
    done += piece;
  }
  EXPECT_TRUE(same_bits(window[0], x.narrow(0, 37, 3).to(at::kFloat)));
}

TEST_P(DeviceLayers, RmsNormEqualsComposed) {
  const DType activation = GetParam() == at::kFloat ? DType::kF32 : DType::kBF16;
  for (const std::int64_t width : {24, 33, 1024, 2304}) {
    Layer layer;
    layer.fused = [&](const Tensors& in) {
      const auto out = model::add_rms_norm(in[1], in[0], in[2], 1e-5, activation);
      return Tensors{out.sum, out.normed};
    };
    layer.composed = [&](const Tensors& in) {
      const auto out = model::add_rms_norm_composed(in[1], in[0], in[2], 1e-5, DType::kF64);
      return Tensors{out.sum, out.normed};
    };
    layer.activations = {random_tensor({1100, width}, 1)};  // more rows than partial sums
    layer.parameters = {random_tensor({1100, width}, 2), random_tensor({width}, 3)};
    layer.seeds = {random_tensor({1100, width}, 4), random_tensor({1100, width}, 5)};
    layer.wide_output = {true, false};
    compare(layer, GetParam(), bound_of(GetParam()));
  }
}

TEST_P(DeviceLayers, GatedNormEqualsComposed) {
  for (const std::int64_t width : {16, 30, 64, 100, 128, 256}) {
    Layer layer;
    layer.fused = [&](const Tensors& in) {
      return Tensors{model::gated_norm(in[0], in[1], in[2], 1e-5)};
    };
    layer.composed = [&](const Tensors& in) {
      return Tensors{model::gated_norm_composed(in[0], in[1], in[2], 1e-5)};
    };
    layer.activations = {random_tensor({77, 3, width}, 1), random_tensor({77, 3 * width}, 2)};
    layer.parameters = {random_tensor({width}, 3)};
    layer.seeds = {random_tensor({77, 3 * width}, 4)};
    layer.wide_output = {false};
    compare(layer, GetParam(), bound_of(GetParam()));
  }
}

TEST_P(DeviceLayers, SwigluEqualsComposed) {
  for (const std::int64_t width : {40, 41, 1024}) {
    Layer layer;
    layer.fused = [](const Tensors& in) { return Tensors{model::swiglu(in[0], in[1])}; };
    layer.composed = [](const Tensors& in) {
      return Tensors{model::swiglu_composed(in[0], in[1])};
    };
    layer.activations = {random_tensor({50, width}, 1) * 6, random_tensor({50, width}, 2) * 3};
    layer.seeds = {random_tensor({50, width}, 3)};
    layer.wide_output = {false};
    compare(layer, GetParam(), bound_of(GetParam()));
  }
}

TEST_P(DeviceLayers, CrossEntropyEqualsHost) {
  for (const std::int64_t vocab : {61, 8192}) {
    std::vector<std::int64_t> ids = random_ids(90, vocab, 5);
    ids[3] = ids[89] = model::kIgnoreTarget;
    const at::Tensor targets = index(ids);
    Layer layer;
    layer.fused = layer.composed = [&](const Tensors& in) {
      return Tensors{model::cross_entropy_sum(in[0], in[1], targets)};
    };
    layer.activations = {random_tensor({90, 32}, 1)};
    layer.parameters = {random_tensor({vocab, 32}, 2)};
    layer.seeds = {random_tensor({}, 3)};
    layer.wide_output = {true};
    // The head is rounded to bf16 for the products.
    compare(layer, GetParam(), GetParam() == at::kFloat ? 5e-6 : 8e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Storage, DeviceLayers, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& test) {
                           return test.param == at::kFloat ? "f32" : "bf16";
                         });

}  // namespace
}  // namespace kda::test
