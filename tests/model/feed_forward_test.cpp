// SiTU-GLU and the dense feed-forward layer.
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "model/gated_activation.h"
#include "model/gated_mlp.h"
#include "model/model_test_support.h"
#include "model/situ_glu.h"
#include "model/swiglu.h"

namespace kda::test {
namespace {

using model::Activation;
using model::ActivationKind;
using Tensors = std::vector<at::Tensor>;

const Activation kSitu{ActivationKind::kSitu, 4.0, 25.0};
const Activation kSituUncapped{ActivationKind::kSitu, 4.0, 0.0};
const Activation kSilu{ActivationKind::kSilu};

TEST(Situ_Forward, GoldenNumbers) {
  const at::Tensor gate = at::tensor({1.0, -1.0, 10.0, 0.5}, at::kDouble).view({2, 2});
  const at::Tensor up = at::tensor({2.0, 3.0, -50.0, 0.5}, at::kDouble).view({2, 2});
  const at::Tensor want =
      at::tensor({1.429351132, -0.786652964, -95.108021534, 0.154788735}, at::kDouble).view({2, 2});
  EXPECT_LT(max_difference(model::gated_activation(gate, up, kSitu), want), 1e-9);
  const at::Tensor narrow = model::gated_activation(gate.to(at::kFloat), up.to(at::kFloat), kSitu);
  EXPECT_LT(max_difference(narrow, want), 2e-5);
}

TEST(Situ_Gradient, GoldenNumbers) {
  at::Tensor gate = at::tensor({1.0}, at::kDouble).view({1, 1}).set_requires_grad(true);
  at::Tensor up = at::tensor({2.0}, at::kDouble).view({1, 1}).set_requires_grad(true);
  torch::autograd::backward({model::gated_activation(gate, up, kSitu)}, {});
  EXPECT_NEAR(gate.grad().item<double>(), 1.755898972, 1e-9);
  EXPECT_NEAR(up.grad().item<double>(), 0.711635366, 1e-9);
}

TEST(Situ_Gradient, CentralDifferences) {
  for (const Activation& activation : {kSitu, kSituUncapped, kSilu}) {
    check_gradients(
        [&](const Tensors& in) {
          return Tensors{model::gated_activation(in[0], in[1], activation)};
        },
        {random_tensor({5, 19}, 1) * 6, random_tensor({5, 19}, 2) * 40});
  }
}

TEST(Situ_Forward, EqualsTheFormulaForAnyStrides) {
  const at::Tensor wide = random_tensor({33, 90}, 3) * 8;
  const at::Tensor gate = wide.narrow(1, 2, 41);
  const at::Tensor up = wide.narrow(1, 47, 41);
  for (const Activation& activation : {kSitu, kSituUncapped}) {
    const model::SituBetas betas{activation.situ_beta, activation.situ_linear_beta};
    const at::Tensor want = model::situ_glu_composed(gate, up, betas);
    EXPECT_LT(max_difference(model::gated_activation(gate, up, activation), want), 1e-13);
    const at::Tensor turned = up.t().contiguous().t();  // columns contiguous
    EXPECT_LT(max_difference(model::gated_activation(gate, turned, activation), want), 1e-13);
  }
  EXPECT_LT(
      max_difference(model::gated_activation(gate, up, kSilu), model::swiglu_composed(gate, up)),
      1e-13);
}

TEST(Situ_Bf16, RoundsOnce) {
  const at::Tensor gate = (random_tensor({40, 65}, 4) * 6).to(at::kBFloat16);
  const at::Tensor up = (random_tensor({40, 65}, 5) * 30).to(at::kBFloat16);
  const at::Tensor y = model::gated_activation(gate, up, kSitu);
  ASSERT_EQ(y.scalar_type(), at::kBFloat16);
  const at::Tensor exact =
      model::situ_glu_composed(gate.to(at::kDouble), up.to(at::kDouble), {4.0, 25.0});
  EXPECT_LT(((y.to(at::kDouble) - exact).abs() / (exact.abs() + 1e-6)).max().item<double>(),
            0.0040);
}

TEST(Situ_Forward, IsBoundedAndPassesNan) {
  const at::Tensor huge = at::tensor({1e30, -1e30, 1e30, -1e30, 7.0}, at::kFloat).view({1, 5});
  const at::Tensor up = at::tensor({1e30, 1e30, -1e30, -1e30, 0.0}, at::kFloat).view({1, 5});
  const at::Tensor y = model::gated_activation(huge, up, kSitu);
  EXPECT_LT(max_difference(y, at::tensor({100.0, 0.0, -100.0, 0.0, 0.0}, at::kDouble)), 1e-4);
  for (const std::int64_t width : {3, 40}) {  // below and above one vector
    at::Tensor gate = random_tensor({2, width}, 6, at::kFloat);
    gate[1][2] = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor poisoned =
        model::gated_activation(gate, random_tensor({2, width}, 7, at::kFloat), kSitu);
    EXPECT_TRUE(poisoned[1][2].isnan().item<bool>());
    EXPECT_FALSE(poisoned[0].isnan().any().item<bool>());
  }
}

TEST(Situ_Forward, IsSwigluNearZero) {
  const at::Tensor gate = random_tensor({3, 8}, 8) * 1e-3;
  const at::Tensor up = random_tensor({3, 8}, 9) * 1e-3;
  const at::Tensor y = model::gated_activation(gate, up, kSitu);
  EXPECT_LT(max_difference(y, model::swiglu_composed(gate, up)), 1e-13);
}

TEST(GatedMlp_Forward, EqualsTheFormula) {
  const model::LayerOptions layer{DType::kF64, "auto", at::TensorOptions().dtype(at::kDouble)};
  const model::GatedMlp mlp(6, 10, kSitu, layer);
  std::vector<model::Parameter> parameters;
  mlp.collect("mlp.", parameters);
  ASSERT_EQ(parameters.size(), 3U);
  std::uint64_t seed = 10;
  for (model::Parameter& p : parameters)
    p.tensor.detach().copy_(random_tensor(p.tensor.sizes(), seed++));
  const at::Tensor x = random_tensor({4, 6}, 20);
  const at::Tensor gate = x.matmul(parameters[0].tensor.t());
  const at::Tensor up = x.matmul(parameters[1].tensor.t());
  const at::Tensor inner = model::situ_glu_composed(gate, up, {4.0, 25.0});
  EXPECT_LT(max_difference(mlp.forward(x), inner.matmul(parameters[2].tensor.t())), 1e-13);
  EXPECT_EQ(parameters[0].name, "mlp.gate_proj.weight");
  EXPECT_EQ(parameters[2].name, "mlp.down_proj.weight");
}

}  // namespace
}  // namespace kda::test
