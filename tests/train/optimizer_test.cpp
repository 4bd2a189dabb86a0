#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <limits>

#include "binding/functional.h"
#include "kda/error.h"
#include "train/adamw.h"
#include "train/fixture.h"

namespace kda::train {
namespace {

using model::Parameter;
using model::ParameterKind;

Parameter parameter(const std::string& name, at::IntArrayRef shape, ParameterKind kind) {
  return {name, at::randn(shape).set_requires_grad(true), kind, 1};
}

/// Matrix, gain of a norm, gate parameter, one larger than a block.
std::vector<Parameter> parameters() {
  return {parameter("layers.0.w", {33, 17}, ParameterKind::kMatrix),
          parameter("layers.0.norm", {129}, ParameterKind::kNorm),
          parameter("layers.0.A_log", {5}, ParameterKind::kGate),
          parameter("embed", {211, 97}, ParameterKind::kEmbedding)};
}

std::vector<Parameter> copy(const std::vector<Parameter>& list) {
  std::vector<Parameter> out;
  for (const Parameter& p : list) {
    out.push_back(p);
    out.back().tensor = p.tensor.detach().clone().set_requires_grad(true);
  }
  return out;
}

void set_gradients(const std::vector<Parameter>& list, std::uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  generator.set_current_seed(seed);
  for (const Parameter& p : list)
    p.tensor.mutable_grad() = at::randn(p.tensor.sizes());
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.detach() - b.detach()).abs().max().item<double>();
}

TEST(AdamW, Step_EqualsTorchOverManySteps) {
  std::vector<Parameter> ours = parameters();
  std::vector<Parameter> theirs = copy(ours);
  AdamW optimizer(ours, {0.9, 0.95, 1e-8, 0.1});
  std::vector<at::Tensor> decayed;
  std::vector<at::Tensor> plain;
  for (const Parameter& p : theirs) {
    (model::takes_weight_decay(p.kind) ? decayed : plain).push_back(p.tensor);
  }
  using torch::optim::AdamWOptions;
  const auto group = [](std::vector<at::Tensor> tensors, double decay) {
    auto options = std::make_unique<AdamWOptions>(1e-3);
    options->betas({0.9, 0.95}).eps(1e-8).weight_decay(decay);
    return torch::optim::OptimizerParamGroup(std::move(tensors), std::move(options));
  };
  torch::optim::AdamW reference(
      std::vector<torch::optim::OptimizerParamGroup>{group(decayed, 0.1), group(plain, 0.0)});
  for (std::uint64_t step = 0; step < 50; ++step) {
    const double lr = 1e-3 * (1.0 + 0.1 * static_cast<double>(step));
    for (auto& g : reference.param_groups())
      static_cast<AdamWOptions&>(g.options()).lr(lr);
    set_gradients(ours, step);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      theirs[i].tensor.mutable_grad() = ours[i].tensor.grad().clone();
    }
    optimizer.step(lr, 1.0);
    reference.step();
  }
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_LT(largest_difference(ours[i].tensor, theirs[i].tensor), 2e-6) << ours[i].name;
  }
}

TEST(AdamW, Step_DecaysMatricesAndEmbeddingsOnly) {
  std::vector<Parameter> list = parameters();
  const std::vector<Parameter> before = copy(list);
  AdamW optimizer(list, {});
  optimizer.step(0.5, 1.0);  // no gradients at all: decay is everything that happens
  for (std::size_t i = 0; i < list.size(); ++i) {
    const double factor = model::takes_weight_decay(list[i].kind) ? 1.0 - 0.5 * 0.1 : 1.0;
    EXPECT_LT(largest_difference(list[i].tensor, before[i].tensor * factor), 1e-6) << list[i].name;
  }
}

TEST(AdamW, Step_GradientScaleIsAScaledGradient) {
  std::vector<Parameter> a = parameters();
  std::vector<Parameter> b = copy(a);
  AdamW first(a, {});
  AdamW second(b, {});
  set_gradients(a, 1);
  for (std::size_t i = 0; i < a.size(); ++i) {
    b[i].tensor.mutable_grad() = a[i].tensor.grad() * 0.25f;  // a power of two: exact
  }
  first.step(1e-3, 0.25);
  second.step(1e-3, 1.0);
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(a[i].tensor.equal(b[i].tensor));
}

TEST(AdamW, ThreadCount_ChangesNoBit) {
  std::vector<Parameter> one = parameters();
  std::vector<Parameter> two = copy(one);
  AdamW first(one, {});
  AdamW second(two, {});
  double norms[2] = {};
  for (std::uint64_t step = 0; step < 5; ++step) {
    set_gradients(one, step);
    for (std::size_t i = 0; i < one.size(); ++i) {
      two[i].tensor.mutable_grad() = one[i].tensor.grad().clone();
    }
    binding::set_num_threads(1);
    norms[0] = first.gradient_stats().norm;
    first.step(1e-2, 1.0);
    binding::set_num_threads(2);
    norms[1] = second.gradient_stats().norm;
    second.step(1e-2, 1.0);
    EXPECT_EQ(norms[0], norms[1]);
  }
  binding::set_num_threads(1);
  for (std::size_t i = 0; i < one.size(); ++i)
    EXPECT_TRUE(one[i].tensor.equal(two[i].tensor));
}

TEST(AdamW, GradientStats_NormAgainstTorch) {
  std::vector<Parameter> list = parameters();
  const AdamW optimizer(list, {});
  set_gradients(list, 3);
  list[1].tensor.mutable_grad().reset();
  double squares = 0;
  for (const Parameter& p : list) {
    if (p.tensor.grad().defined()) {
      squares += p.tensor.grad().to(at::kDouble).square().sum().item<double>();
    }
  }
  EXPECT_NEAR(optimizer.gradient_stats().norm, std::sqrt(squares), 1e-10 * std::sqrt(squares));
  EXPECT_EQ(optimizer.gradient_stats().num_nonfinite, 0);
}

TEST(AdamW, GradientStats_NamesTheOneNearestToTheLoss) {
  std::vector<Parameter> list = parameters();
  const AdamW optimizer(list, {});
  set_gradients(list, 3);
  list[0].tensor.mutable_grad().view(-1)[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(optimizer.gradient_stats().nearest_nonfinite, "layers.0.w");
  list[3].tensor.mutable_grad().view(-1)[20000] = std::numeric_limits<float>::infinity();
  const GradientStats stats = optimizer.gradient_stats();
  EXPECT_EQ(stats.num_nonfinite, 2);
  EXPECT_EQ(stats.nearest_nonfinite, "embed");
}

TEST(AdamW, GradientStats_LargeFiniteGradientsAreFinite) {
  std::vector<Parameter> list = {parameter("w", {100, 100}, ParameterKind::kMatrix)};
  const AdamW optimizer(list, {});
  list[0].tensor.mutable_grad() = at::full({100, 100}, 3e38f);
  EXPECT_EQ(optimizer.gradient_stats().num_nonfinite, 0);
  EXPECT_NEAR(optimizer.gradient_stats().norm / 3e40, 1.0, 1e-6);
}

TEST(AdamW, ClipScale) {
  EXPECT_DOUBLE_EQ(clip_scale(4.0, 1.0), 0.25);
  EXPECT_DOUBLE_EQ(clip_scale(0.5, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_scale(4.0, 0.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_scale(0.0, 1.0), 1.0);
}

TEST(AdamW, Construction_RefusesNarrowParameters) {
  Parameter p = parameter("w", {2, 2}, ParameterKind::kMatrix);
  p.tensor = p.tensor.detach().to(at::kBFloat16);
  const std::string text =
      testing::error_text(ErrorCode::kUnsupported, [&] { AdamW optimizer({p}, {}); });
  EXPECT_NE(text.find("w"), std::string::npos) << text;
}

}  // namespace
}  // namespace kda::train
