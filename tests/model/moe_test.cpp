// Router, experts and the mixture-of-experts layer.
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <map>

#include "kda/parallel.h"
#include "model/experts.h"
#include "model/gated_activation.h"
#include "model/latent_moe.h"
#include "model/model_test_support.h"
#include "model/router.h"

namespace kda::test {
namespace {

using model::Activation;
using model::ActivationKind;
using model::LatentMoe;
using model::MoeConfig;
using Tensors = std::vector<at::Tensor>;

const Activation kSitu{ActivationKind::kSitu, 4.0, 25.0};

MoeConfig moe_config() {
  MoeConfig c;
  c.num_experts = 5;
  c.num_experts_per_token = 2;
  c.num_shared_experts = 2;
  c.intermediate_size = 6;
  c.latent_size = 4;
  c.latent_norm = true;
  c.routed_scaling_factor = 1.5;
  return c;
}

model::LayerOptions layer_options(DType compute = DType::kF64) {
  return {compute, "auto",
          at::TensorOptions().dtype(compute == DType::kF64 ? at::kDouble : at::kFloat)};
}

constexpr std::int64_t kWidth = 8;  // d

LatentMoe make_moe(const MoeConfig& config, DType compute = DType::kF64) {
  LatentMoe moe(config, kWidth, kSitu, 1e-5, layer_options(compute));
  std::vector<model::Parameter> parameters;
  moe.collect("", parameters);
  std::uint64_t seed = 100;
  for (model::Parameter& p : parameters)
    p.tensor.detach().copy_(random_tensor(p.tensor.sizes(), seed++));
  moe.selection_bias().detach().copy_(random_tensor({config.num_experts}, 99) * 0.2);
  return moe;
}

std::map<std::string, at::Tensor> named(const LatentMoe& moe) {
  std::vector<model::Parameter> parameters;
  moe.collect("", parameters);
  std::map<std::string, at::Tensor> all;
  for (const model::Parameter& p : parameters)
    all[p.name] = p.tensor;
  return all;
}

// The layer with every expert run on every token and the weights spread over a dense matrix.
at::Tensor dense_form(const LatentMoe& moe, const at::Tensor& x) {
  const MoeConfig& c = moe.config();
  const auto w = named(moe);
  const at::Tensor s = at::sigmoid(x.matmul(w.at("gate.weight").t()));
  const at::Tensor chosen =
      std::get<1>((s + moe.selection_bias()).topk(c.num_experts_per_token, -1));
  at::Tensor mask = at::zeros(s.sizes(), s.options()).scatter_(1, chosen, 1.0);
  at::Tensor p = s * mask;
  if (c.renormalize && c.num_experts_per_token > 1) p = p / p.sum(-1, true);
  p = p * c.routed_scaling_factor;
  const at::Tensor z = c.latent_size > 0 ? x.matmul(w.at("routed_expert_down_proj.weight").t()) : x;
  at::Tensor u;
  for (std::int64_t e = 0; e < c.num_experts; ++e) {
    const at::Tensor both = z.matmul(w.at("experts.gate_up_proj")[e].t());
    const at::Tensor inner =
        model::gated_activation(both.narrow(1, 0, c.intermediate_size),
                                both.narrow(1, c.intermediate_size, c.intermediate_size), kSitu);
    const at::Tensor part = inner.matmul(w.at("experts.down_proj")[e].t()) * p.narrow(1, e, 1);
    u = u.defined() ? u + part : part;
  }
  if (c.latent_norm) {
    u = u * ((u * u).mean(-1, true) + 1e-5).rsqrt() * w.at("routed_expert_norm.weight");
  }
  if (c.latent_size > 0) u = u.matmul(w.at("routed_expert_up_proj.weight").t());
  if (c.num_shared_experts == 0) return u;
  // One MLP of twice the width is the sum of two experts.
  for (std::int64_t n = 0; n < c.num_shared_experts; ++n) {
    const auto rows = [&](const std::string& name) {
      return w.at(name).narrow(0, n * c.intermediate_size, c.intermediate_size);
    };
    const at::Tensor inner =
        model::gated_activation(x.matmul(rows("shared_experts.gate_proj.weight").t()),
                                x.matmul(rows("shared_experts.up_proj.weight").t()), kSitu);
    const at::Tensor down = w.at("shared_experts.down_proj.weight")
                                .narrow(1, n * c.intermediate_size, c.intermediate_size);
    u = u + inner.matmul(down.t());
  }
  return u;
}

std::map<std::string, at::Tensor> gradients(
    const LatentMoe& moe, const at::Tensor& x_in,
    const std::function<at::Tensor(const LatentMoe&, const at::Tensor&)>& f) {
  for (auto& [name, tensor] : named(moe))
    tensor.mutable_grad() = at::Tensor();
  at::Tensor x = x_in.clone().set_requires_grad(true);
  const at::Tensor y = f(moe, x);
  torch::autograd::backward({y}, {random_tensor(y.sizes(), 55)});
  std::map<std::string, at::Tensor> all{{"x", x.grad()}, {"y", y.detach()}};
  for (const auto& [name, tensor] : named(moe)) {
    if (tensor.grad().defined()) all[name] = tensor.grad().clone();
  }
  return all;
}

at::Tensor forward(const LatentMoe& moe, const at::Tensor& x) { return moe.forward(x); }

void expect_equals_dense_form(const MoeConfig& config) {
  const LatentMoe moe = make_moe(config);
  const at::Tensor x = random_tensor({37, kWidth}, 1);
  const auto ours = gradients(moe, x, forward);
  const auto theirs = gradients(moe, x, dense_form);
  ASSERT_EQ(ours.size(), theirs.size());
  for (const auto& [name, value] : theirs) {
    ASSERT_TRUE(ours.contains(name)) << name;
    EXPECT_LT(max_difference(ours.at(name), value), 1e-11) << name;
  }
}

TEST(Router_Weights, SumToTheScalingFactorAndAreUnbiased) {
  MoeConfig c = moe_config();
  const at::Tensor x = random_tensor({20, kWidth}, 2);
  const at::Tensor w = random_tensor({5, kWidth}, 3);
  at::Tensor bias = at::zeros({5}, at::TensorOptions().dtype(at::kDouble));
  bias[0] = 10.0;  // always chosen, and its weight is still made of the plain scores
  const auto routing = model::route(x, w, bias, c);
  EXPECT_LT(max_difference(routing.weights.sum(-1), at::zeros({20}) + 1.5), 1e-12);
  EXPECT_EQ(routing.experts.select(1, 0).abs().max().item<std::int64_t>(), 0);
  const at::Tensor s = at::sigmoid(x.matmul(w.t()));
  const at::Tensor chosen = s.gather(1, routing.experts);
  EXPECT_LT(max_difference(routing.weights, chosen / chosen.sum(-1, true) * 1.5), 1e-12);
  // The form of Kimi-Linear's released code: the bias in the weights too.
  c.weights_include_bias = true;
  const auto leaky = model::route(x, w, bias, c);
  const at::Tensor biased = (s + bias).gather(1, leaky.experts);
  EXPECT_LT(max_difference(leaky.weights, biased / biased.sum(-1, true) * 1.5), 1e-12);
  EXPECT_GT(leaky.weights.select(1, 0).min().item<double>(), 1.3);
}

TEST(Router_Threshold, IsTheBestThatWasNotChosen) {
  const MoeConfig c = moe_config();
  const at::Tensor x = random_tensor({20, kWidth}, 4);
  const at::Tensor w = random_tensor({5, kWidth}, 5);
  const at::Tensor bias = random_tensor({5}, 6) * 0.3;
  const auto routing = model::route(x, w, bias, c);
  const at::Tensor sorted = std::get<0>((at::sigmoid(x.matmul(w.t())) + bias).sort(1, true));
  EXPECT_LT(max_difference(routing.threshold, sorted.select(1, 2)), 1e-13);
}

TEST(Router_Groups, ChooseInsideTheBestGroups) {
  MoeConfig c = moe_config();
  c.num_experts = 6;
  c.num_groups = 3;
  c.topk_groups = 1;
  c.num_experts_per_token = 2;
  // Scores by hand: x = 1, one column. Group sums: (3+0), (2+2), (1+1) in logits.
  const at::Tensor w = at::tensor({3.0, -9.0, 2.0, 2.1, 1.0, 1.0}, at::kDouble).view({6, 1});
  const at::Tensor x = at::tensor({1.0}, at::kDouble).view({1, 1});
  const at::Tensor bias = at::zeros({6}, at::TensorOptions().dtype(at::kDouble));
  const auto routing = model::route(x, w, bias, c);
  EXPECT_EQ(routing.experts[0][0].item<std::int64_t>(), 3);
  EXPECT_EQ(routing.experts[0][1].item<std::int64_t>(), 2);
  c.topk_groups = 3;
  const auto all = model::route(x, w, bias, c);
  EXPECT_EQ(all.experts[0][0].item<std::int64_t>(), 0);
}

TEST(Router_Gradient, CentralDifferences) {
  MoeConfig c = moe_config();
  const at::Tensor bias = random_tensor({5}, 7) * 0.3;
  for (const bool renormalize : {true, false}) {
    for (const bool leak : {true, false}) {
      c.renormalize = renormalize;
      c.weights_include_bias = leak;
      check_gradients(
          [&](const Tensors& in) { return Tensors{model::route(in[0], in[1], bias, c).weights}; },
          {random_tensor({9, kWidth}, 8), random_tensor({5, kWidth}, 9)});
    }
  }
}

TEST(Router_Gradient, OneExpertHasNoneOnlyWithoutItsScore) {
  // With k = 1 the weight is the score itself: renormalised it would be a constant.
  MoeConfig c = moe_config();
  c.num_experts_per_token = 1;
  const at::Tensor bias = at::zeros({5}, at::TensorOptions().dtype(at::kDouble));
  const at::Tensor x = random_tensor({9, kWidth}, 10);
  const auto routing = model::route(x, random_tensor({5, kWidth}, 11), bias, c);
  EXPECT_LT(routing.weights.max().item<double>(), 1.5);
}

TEST(Router_Precision, IsF32ForBf16Activations) {
  const MoeConfig c = moe_config();
  const at::Tensor x = random_tensor({50, kWidth}, 12, at::kBFloat16);
  const at::Tensor w = random_tensor({5, kWidth}, 13, at::kFloat);
  const at::Tensor bias = random_tensor({5}, 14, at::kFloat);
  const auto narrow = model::route(x, w, bias, c);
  const auto exact = model::route(x.to(at::kDouble), w.to(at::kDouble), bias.to(at::kDouble), c);
  EXPECT_EQ(narrow.weights.scalar_type(), at::kFloat);
  EXPECT_LT(max_difference(narrow.weights, exact.weights), 1e-6);
}

TEST(Experts_Gradient, CentralDifferencesWithAnIdleExpert) {
  // Expert 2 of 4 gets no token, expert 0 gets every token.
  const at::Tensor experts = index({0, 1, 0, 3, 3, 0, 0, 1, 1, 0}).view({5, 2});
  for (const Activation& activation : {kSitu, Activation{}}) {
    check_gradients(
        [&](const Tensors& in) {
          return Tensors{model::expert_sum(in[0], in[1], experts, in[2], in[3], activation)};
        },
        {random_tensor({5, 3}, 15), random_tensor({5, 2}, 16), random_tensor({4, 10, 3}, 17),
         random_tensor({4, 3, 5}, 18)});
  }
}

TEST(Moe_Forms, EqualTheDenseFormula) {
  expect_equals_dense_form(moe_config());
  MoeConfig linear = moe_config();  // Kimi-Linear: no latent width, no norm, one shared expert
  linear.latent_size = 0;
  linear.latent_norm = false;
  linear.num_shared_experts = 1;
  linear.routed_scaling_factor = 2.446;
  expect_equals_dense_form(linear);
  MoeConfig all = moe_config();  // every expert serves every token
  all.num_experts_per_token = all.num_experts;
  expect_equals_dense_form(all);
  MoeConfig one = moe_config();
  one.num_experts_per_token = 1;
  one.num_shared_experts = 0;
  expect_equals_dense_form(one);
}

TEST(Moe_Names, AreThoseOfTheCheckpoints) {
  const LatentMoe moe = make_moe(moe_config());
  std::vector<model::Parameter> parameters;
  moe.collect("m.", parameters);
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const model::Parameter& p : parameters)
    shapes[p.name] = p.tensor.sizes().vec();
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(shapes.at("m.gate.weight"), (Shape{5, kWidth}));  // the router reads the full width
  EXPECT_EQ(shapes.at("m.experts.gate_up_proj"), (Shape{5, 12, 4}));
  EXPECT_EQ(shapes.at("m.experts.down_proj"), (Shape{5, 4, 6}));
  EXPECT_EQ(shapes.at("m.shared_experts.gate_proj.weight"), (Shape{12, kWidth}));
  EXPECT_EQ(shapes.at("m.routed_expert_up_proj.weight"), (Shape{kWidth, 4}));
  std::vector<model::Parameter> buffers;
  moe.collect_buffers("m.", buffers);
  ASSERT_EQ(buffers.size(), 1U);
  EXPECT_EQ(buffers[0].name, "m.gate.e_score_correction_bias");
  EXPECT_FALSE(buffers[0].tensor.requires_grad());
}

TEST(Moe_Tokens, DoNotSeeEachOther) {
  const LatentMoe moe = make_moe(moe_config());
  const at::Tensor x = random_tensor({16, kWidth}, 19);
  const at::Tensor whole = moe.forward(x);
  EXPECT_LT(max_difference(moe.forward(x.narrow(0, 7, 1)), whole.narrow(0, 7, 1)), 1e-13);
  EXPECT_EQ(moe.forward(x.narrow(0, 0, 0)).size(0), 0);
}

TEST(Moe_Bf16, StaysNearF64) {
  const MoeConfig c = moe_config();
  const LatentMoe exact = make_moe(c);
  const LatentMoe narrow = make_moe(c, DType::kBF16);
  const at::Tensor x = random_tensor({64, kWidth}, 20, at::kBFloat16);
  const at::Tensor y = narrow.forward(x);
  ASSERT_EQ(y.scalar_type(), at::kBFloat16);
  const at::Tensor want = exact.forward(x.to(at::kDouble));
  const double rmse =
      ((y.to(at::kDouble) - want).square().mean() / want.square().mean()).sqrt().item<double>();
  EXPECT_LT(rmse, 0.01);
}

TEST(Moe_Repeat, SameBitsForEveryRunAndThreadCount) {
  const LatentMoe moe = make_moe(moe_config(), DType::kF32);
  const at::Tensor x = random_tensor({1500, kWidth}, 21, at::kFloat);
  kda::set_num_threads(1);
  const auto one = gradients(moe, x.to(at::kFloat), forward);
  kda::set_num_threads(2);
  const auto two = gradients(moe, x.to(at::kFloat), forward);
  kda::set_num_threads(0);
  for (const auto& [name, value] : one)
    EXPECT_TRUE(same_bits(value, two.at(name))) << name;
}

TEST(Moe_Statistics, CountOnceAndLeavePaddingOut) {
  const MoeConfig c = moe_config();
  const LatentMoe moe = make_moe(c);
  const at::Tensor x = random_tensor({30, kWidth}, 22);
  model::RoutingStatistics statistics;
  const at::Tensor first = moe.forward(x, &statistics);
  const at::Tensor loads = statistics.loads().clone();
  EXPECT_EQ(loads.sum().item<std::int64_t>(), 60);
  // The second forward of a recomputed layer: the same values, nothing counted.
  EXPECT_TRUE(same_bits(moe.forward(x), first));
  EXPECT_TRUE(same_bits(statistics.loads(), loads));
  // Twenty real tokens and ten of padding count like the twenty alone.
  at::Tensor counted = at::zeros({30}, at::TensorOptions().dtype(at::kBool));
  counted.narrow(0, 0, 20).fill_(true);
  for (const model::BalanceKind kind :
       {model::BalanceKind::kQuantile, model::BalanceKind::kQuantileHistogram,
        model::BalanceKind::kSign}) {
    model::RoutingStatistics padded({kind});
    model::RoutingStatistics plain({kind});
    moe.forward(x, &padded, counted);
    moe.forward(x.narrow(0, 0, 20), &plain);
    EXPECT_EQ(padded.num_tokens().item<std::int64_t>(), 20);
    EXPECT_TRUE(same_bits(padded.loads(), plain.loads()));
    at::Tensor a = moe.selection_bias().clone();
    at::Tensor b = a.clone();
    padded.update(a);
    plain.update(b);
    EXPECT_LT(max_difference(a, b), 1e-13) << name_of(kind);
    EXPECT_GT(max_difference(a, moe.selection_bias()), 1e-6) << name_of(kind);
  }
}

TEST(Moe_Statistics, NonFiniteScoresLeaveAFiniteBias) {
  for (const model::BalanceKind kind :
       {model::BalanceKind::kQuantile, model::BalanceKind::kQuantileHistogram,
        model::BalanceKind::kSign}) {
    const LatentMoe moe = make_moe(moe_config());
    at::Tensor x = random_tensor({30, kWidth}, 24);
    x.narrow(0, 3, 12).fill_(std::numeric_limits<double>::quiet_NaN());
    model::RoutingStatistics statistics({kind});
    EXPECT_TRUE(moe.forward(x, &statistics)[3].isnan().any().item<bool>());  // it is seen
    at::Tensor bias = moe.selection_bias().clone();
    statistics.update(bias);
    EXPECT_TRUE(bias.isfinite().all().item<bool>()) << name_of(kind);
  }
}

TEST(Moe_Statistics, QuantileWithGroupsIsRefused) {
  MoeConfig c = moe_config();
  c.num_experts = 6;
  c.num_groups = 3;
  c.topk_groups = 2;
  const LatentMoe moe = make_moe(c);
  model::RoutingStatistics statistics;
  expect_contains(error_of(
                      [&] {
                        moe.forward(random_tensor({3, kWidth}, 23), &statistics);
                      },
                      ErrorCode::kUnsupported),
                  "groups");
}

}  // namespace
}  // namespace kda::test
