#include "train/muon.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_svdvals.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "kda/error.h"
#include "model/causal_lm.h"
#include "train/evaluate.h"
#include "train/fixture.h"

namespace kda::train {
namespace {

using model::Parameter;
using model::ParameterKind;

at::Tensor matrix(std::vector<double> values, std::int64_t rows) {
  return at::tensor(values, at::kDouble).view({rows, -1});
}

double largest(const at::Tensor& difference) { return difference.abs().max().item<double>(); }

void seed_torch(std::uint64_t value) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  generator.set_current_seed(value);
}

Parameter muon_parameter(const std::string& name, at::IntArrayRef shape, ParameterKind kind,
                         std::int64_t heads = 1) {
  return {name, at::randn(shape).set_requires_grad(true), kind, heads};
}

TEST(Muon, NewtonSchulz_GoldenNumbers) {
  const at::Tensor wide = matrix({1, 2, 3, 4, 5, 6}, 2);
  const at::Tensor wanted =
      matrix({-.56829011, .057741943, .683773996, .563354698, .405612831, .247870965}, 2);
  EXPECT_LT(largest(newton_schulz(wide.unsqueeze(0))[0] - wanted), 1e-8);
  const at::Tensor tall = wide.t().contiguous();
  EXPECT_LT(largest(newton_schulz(tall.unsqueeze(0))[0] - wanted.t()), 1e-8);
  const at::Tensor diagonal = matrix({3, 0, 0, 1}, 2);
  EXPECT_LT(
      largest(newton_schulz(diagonal.unsqueeze(0))[0] - matrix({.753033451, 0, 0, 1.133706223}, 2)),
      1e-8);
}

TEST(Muon, NewtonSchulz_SingularValuesComeNearOne) {
  seed_torch(3);
  const at::Tensor batch = at::randn({5, 24, 40}, at::kDouble);
  const at::Tensor values = at::linalg_svdvals(newton_schulz(batch));
  EXPECT_GT(values.min().item<double>(), 0.6);
  EXPECT_LT(values.max().item<double>(), 1.3);
  // Every matrix of a batch is treated as if it were alone.
  for (std::int64_t i = 0; i < 5; ++i) {
    EXPECT_LT(largest(newton_schulz(batch.narrow(0, i, 1))[0] - newton_schulz(batch)[i]), 1e-12);
  }
  EXPECT_EQ(largest(newton_schulz(at::zeros({1, 3, 3}, at::kDouble))), 0.0);
}

/// The first step of the definition, in double, block by block.
at::Tensor expected_step(const at::Tensor& weight, const at::Tensor& gradient, std::int64_t blocks,
                         double lr, double decay, double momentum) {
  const std::int64_t rows = weight.size(-2) / blocks;
  const at::Tensor w = weight.to(at::kDouble).reshape({-1, rows, weight.size(-1)});
  const at::Tensor g = gradient.to(at::kDouble).reshape(w.sizes());
  std::vector<at::Tensor> out;
  for (std::int64_t b = 0; b < w.size(0); ++b) {
    const at::Tensor direction = g[b] + momentum * g[b];  // momentum buffers start at zero
    const at::Tensor o = newton_schulz(direction.unsqueeze(0))[0];
    const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, weight.size(-1))));
    out.push_back(w[b] * (1 - lr * decay) - lr * scale * o);
  }
  return at::stack(out).reshape(weight.sizes());
}

TEST(Muon, Step_IsTheDefinitionHeadByHead) {
  seed_torch(7);
  std::vector<Parameter> list{
      muon_parameter("q", {12, 10}, ParameterKind::kMatrix, 3),
      muon_parameter("o", {10, 12}, ParameterKind::kMatrix),
      muon_parameter("experts", {4, 6, 10}, ParameterKind::kExperts),
  };
  std::vector<at::Tensor> wanted;
  constexpr double kLr = 0.02;
  for (const Parameter& p : list) {
    p.tensor.mutable_grad() = at::randn(p.tensor.sizes());
    wanted.push_back(
        expected_step(p.tensor.detach(), p.tensor.grad(), p.head_blocks, kLr, 0.1, 0.95));
  }
  Muon optimizer(list, {0.95, 0.1}, {});
  optimizer.step(kLr, 1.0);
  for (std::size_t i = 0; i < list.size(); ++i) {
    EXPECT_LT(largest(list[i].tensor.detach().to(at::kDouble) - wanted[i]), 2e-5) << list[i].name;
  }
}

TEST(Muon, Step_TheUpdateHasTheRmsOfAdamW) {
  seed_torch(11);
  std::vector<Parameter> list{muon_parameter("w", {48, 96}, ParameterKind::kMatrix, 2)};
  const at::Tensor before = list[0].tensor.detach().clone();
  list[0].tensor.mutable_grad() = at::randn({48, 96});
  Muon optimizer(list, {0.95, 0.0}, {});
  optimizer.step(1e-2, 1.0);
  const at::Tensor change = (list[0].tensor.detach() - before) / 1e-2;
  const double rms = change.to(at::kDouble).square().mean().sqrt().item<double>();
  EXPECT_NEAR(rms, 0.2, 0.05);
}

TEST(Muon, Step_AScaledGradientChangesTheMomentumNotTheDirection) {
  seed_torch(13);
  std::vector<Parameter> a{muon_parameter("w", {8, 8}, ParameterKind::kMatrix)};
  std::vector<Parameter> b{a[0]};
  b[0].tensor = a[0].tensor.detach().clone().set_requires_grad(true);
  const at::Tensor g = at::randn({8, 8});
  a[0].tensor.mutable_grad() = g.clone();
  b[0].tensor.mutable_grad() = g.clone();
  Muon first(a, {}, {});
  Muon second(b, {}, {});
  first.step(1e-2, 1.0);
  second.step(1e-2, 0.25);
  EXPECT_LT(largest(a[0].tensor.detach() - b[0].tensor.detach()), 1e-5);
  EXPECT_LT(largest(first.state()[0].second * 0.25 - second.state()[0].second), 1e-6);
}

TEST(Muon, OnlyMatricesWithTwoRowsAndColumns) {
  const auto takes = [](at::IntArrayRef shape, ParameterKind kind, std::int64_t heads = 1) {
    return takes_muon(muon_parameter("x", shape, kind, heads));
  };
  EXPECT_TRUE(takes({8, 6}, ParameterKind::kMatrix, 2));
  EXPECT_TRUE(takes({3, 8, 6}, ParameterKind::kExperts));
  EXPECT_FALSE(takes({1, 64}, ParameterKind::kQuery));
  EXPECT_FALSE(takes({1, 64}, ParameterKind::kMatrix));
  EXPECT_FALSE(takes({4, 64}, ParameterKind::kMatrix, 4));  // a row for each head
  EXPECT_FALSE(takes({64, 1}, ParameterKind::kMatrix));
  EXPECT_FALSE(takes({64, 8}, ParameterKind::kEmbedding));
  EXPECT_FALSE(takes({64, 8}, ParameterKind::kHead));
  EXPECT_FALSE(takes({64}, ParameterKind::kNorm));
  EXPECT_FALSE(takes({64, 1, 4}, ParameterKind::kConv));
  EXPECT_FALSE(takes({4}, ParameterKind::kGate));
}

TEST(Muon, OthersGoToAdamW) {
  seed_torch(17);
  std::vector<Parameter> list{muon_parameter("embed", {20, 8}, ParameterKind::kEmbedding),
                              muon_parameter("w", {8, 8}, ParameterKind::kMatrix),
                              muon_parameter("norm", {8}, ParameterKind::kNorm)};
  std::vector<Parameter> twin{list[0], list[2]};
  for (Parameter& p : twin)
    p.tensor = p.tensor.detach().clone().set_requires_grad(true);
  Muon muon(list, {}, {});
  AdamW adamw(twin, {});
  for (int step = 0; step < 3; ++step) {
    for (const Parameter& p : list)
      p.tensor.mutable_grad() = at::randn(p.tensor.sizes());
    twin[0].tensor.mutable_grad() = list[0].tensor.grad().clone();
    twin[1].tensor.mutable_grad() = list[2].tensor.grad().clone();
    muon.step(1e-3, 0.5);
    adamw.step(1e-3, 0.5);
  }
  EXPECT_TRUE(list[0].tensor.equal(twin[0].tensor));
  EXPECT_TRUE(list[2].tensor.equal(twin[1].tensor));
  std::set<std::string> names;
  for (const auto& [name, tensor] : muon.state())
    names.insert(name);
  EXPECT_EQ(names, (std::set<std::string>{"momentum.w", "exp_avg.embed", "exp_avg_sq.embed",
                                          "exp_avg.norm", "exp_avg_sq.norm"}));
  EXPECT_EQ(muon.state_bytes(), optimizer_state_bytes(list, "muon"));
  EXPECT_EQ(adamw.state_bytes(), optimizer_state_bytes(twin, "adamw"));
}

TEST(Muon, AModelLearnsOneBatch) {
  const model::KDAConfig config = model::KDAConfig::preset("tiny");
  const model::CausalLM model(config, {});
  const auto optimizer = make_optimizer(model.parameters(), {"muon"});
  EXPECT_NE(optimizer->description().find("matrices"), std::string::npos);
  text::PackedBatch batch;
  batch.rows = 1;
  batch.seq_len = 24;
  batch.cu_seqlens = {0, 24};
  for (std::int64_t t = 0; t < 24; ++t) {
    batch.inputs.push_back((t * 37 + 5) % config.vocab_size);
    batch.targets.push_back(((t + 1) * 37 + 5) % config.vocab_size);
  }
  const BatchTensors tensors = to_tensors(batch);
  double first = 0;
  double last = 0;
  for (int step = 0; step < 40; ++step) {
    const model::LossOutput loss = model.loss(tensors.packed, tensors.targets);
    last = loss.loss_sum.item<double>() / 24;
    if (step == 0) first = last;
    loss.loss_sum.div(24.0).backward();
    optimizer->step(1e-2, 1.0);
    optimizer->clear_gradients();
  }
  EXPECT_GT(first, 5.0);
  EXPECT_LT(last, 0.5);
}

TEST(Muon, UnknownOptimizerIsRefused) { EXPECT_THROW(make_optimizer({}, {"lion"}), Error); }

}  // namespace
}  // namespace kda::train
