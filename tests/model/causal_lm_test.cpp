#include "model/causal_lm.h"

#include <ATen/ops/log_softmax.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <map>

#include "kda/parallel.h"
#include "model/model_test_support.h"

namespace kda::test {
namespace {

using model::CausalLM;
using model::KDAConfig;
using model::PackedIds;

PackedIds packed(const std::vector<std::int64_t>& ids, const std::vector<std::int64_t>& cu) {
  return {index(ids), index(cu)};
}

// Targets that predict within each document.
std::vector<std::int64_t> shifted(const std::vector<std::int64_t>& ids,
                                  const std::vector<std::int64_t>& cu) {
  std::vector<std::int64_t> targets(ids.size(), model::kIgnoreTarget);
  for (std::size_t n = 0; n + 1 < cu.size(); ++n) {
    for (auto t = cu[n]; t + 1 < cu[n + 1]; ++t) {
      targets[static_cast<std::size_t>(t)] = ids[static_cast<std::size_t>(t) + 1];
    }
  }
  return targets;
}

std::map<std::string, at::Tensor> gradients(const CausalLM& lm, const PackedIds& batch,
                                            const std::vector<std::int64_t>& targets,
                                            bool recompute = false) {
  for (const model::Parameter& p : lm.parameters()) {
    at::Tensor tensor = p.tensor;
    tensor.mutable_grad().reset();
  }
  model::ForwardOptions options;
  options.recompute_blocks = recompute;
  torch::autograd::backward({lm.loss(batch, index(targets), options).loss_sum}, {});
  std::map<std::string, at::Tensor> result;
  for (const model::Parameter& p : lm.parameters())
    result[p.name] = p.tensor.grad().clone();
  return result;
}

TEST(CausalLM_Shapes, LossLogitsAndParameters) {
  const KDAConfig c = small_config();
  const CausalLM lm = make_model(c, DType::kF32);
  const auto ids = random_ids(2 * 35, c.vocab_size, 1);
  const PackedIds batch{index(ids).view({2, 35}), {}};
  const at::Tensor logits = lm.logits(batch);
  EXPECT_EQ(logits.sizes(), (at::IntArrayRef{70, 61}));
  EXPECT_EQ(logits.scalar_type(), at::kFloat);
  EXPECT_FALSE(logits.requires_grad());
  const auto targets = index(shifted(ids, {0, 35, 70})).view({2, 35});
  const model::LossOutput loss = lm.loss(batch, targets);
  EXPECT_EQ(loss.num_tokens, 68);
  EXPECT_EQ(loss.loss_sum.dim(), 0);
  EXPECT_EQ(loss.loss_sum.scalar_type(), at::kFloat);
  EXPECT_NEAR(loss.loss_sum.item<double>() / 68, std::log(61.0), 0.3);
  const auto parameters = lm.parameters();
  EXPECT_EQ(parameters.size(), 1U + 2U * (14U + 5U) + 1U);
  for (const model::Parameter& p : parameters) {
    EXPECT_TRUE(p.tensor.is_leaf() && p.tensor.requires_grad()) << p.name;
    EXPECT_EQ(p.tensor.scalar_type(), at::kFloat) << p.name;
    EXPECT_EQ(p.tensor.size(0) % p.head_blocks, 0) << p.name;
  }
}

TEST(CausalLM_Loss, EqualsLogSoftmaxOfTheLogits) {
  const KDAConfig c = small_config();
  const CausalLM lm = make_model(c, DType::kF64);
  spread_weights(lm, 5);
  const std::vector<std::int64_t> cu{0, 20, 21, 90};
  const auto ids = random_ids(90, c.vocab_size, 2);
  const PackedIds batch = packed(ids, cu);
  const auto targets = shifted(ids, cu);
  const at::Tensor log_p = at::log_softmax(lm.logits(batch), 1);
  double sum = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] >= 0) sum -= log_p[static_cast<std::int64_t>(i)][targets[i]].item<double>();
  }
  EXPECT_NEAR(lm.loss(batch, index(targets)).loss_sum.item<double>(), sum, 1e-9);
  const at::Tensor each = lm.token_losses(batch, index(targets));
  EXPECT_NEAR(each.sum().item<double>(), sum, 1e-9);
  EXPECT_EQ(each[19].item<double>(), 0.0);  // A's last token does not predict B's first
}

// Some elements of every parameter, through the whole model.
TEST(CausalLM_Gradient, CentralDifferencesOfEveryParameter) {
  for (const bool tied : {true, false}) {
    KDAConfig c = small_config();
    c.tie_embeddings = tied;
    c.full_rank_gate = tied;
    c.chunk = 16;
    const CausalLM lm = make_model(c, DType::kF64);
    spread_weights(lm, 6);
    const std::vector<std::int64_t> cu{0, 9, 30};
    const auto ids = random_ids(30, c.vocab_size, 3);
    const PackedIds batch = packed(ids, cu);
    const auto targets = shifted(ids, cu);
    const auto analytic = gradients(lm, batch, targets);
    const c10::NoGradGuard no_grad;
    const auto loss = [&] { return lm.loss(batch, index(targets)).loss_sum.item<double>(); };
    for (const model::Parameter& p : lm.parameters()) {
      at::Tensor flat = p.tensor.detach().view({-1});
      const at::Tensor gradient = analytic.at(p.name).reshape({-1});
      EXPECT_GT(gradient.abs().max().item<double>(), 1e-6) << p.name << " has no effect";
      for (const double u : {0.1, 0.5, 0.93}) {
        const auto i = static_cast<std::int64_t>(u * static_cast<double>(flat.numel()));
        double* value = flat.mutable_data_ptr<double>() + i;
        const double saved = *value;
        constexpr double kStep = 1e-6;
        *value = saved + kStep;
        const double above = loss();
        *value = saved - kStep;
        const double below = loss();
        *value = saved;
        const double numeric = (above - below) / (2 * kStep);
        const double got = gradient[i].item<double>();
        EXPECT_NEAR(got, numeric, 2e-7 * std::max(10.0, std::abs(numeric))) << p.name << " " << i;
      }
    }
  }
}

TEST(CausalLM_Causality, FutureTokensChangeNoBit) {
  const KDAConfig c = small_config();
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const CausalLM lm = make_model(c, compute);
    spread_weights(lm, 7);
    auto ids = random_ids(140, c.vocab_size, 4);
    const at::Tensor before = lm.logits(packed(ids, {0, 140}));
    for (const std::int64_t cut : {1, 63, 64, 65, 139}) {
      auto changed = ids;
      changed[static_cast<std::size_t>(cut)] = (changed[static_cast<std::size_t>(cut)] + 1) % 61;
      const at::Tensor after = lm.logits(packed(changed, {0, 140}));
      EXPECT_TRUE(same_bits(before.narrow(0, 0, cut), after.narrow(0, 0, cut))) << cut;
      EXPECT_FALSE(same_bits(before[cut], after[cut])) << cut;
    }
  }
}

// Documents A and B share a row; only A's last token changes.
TEST(CausalLM_Packing, DocumentsDoNotSeeEachOther) {
  const KDAConfig c = small_config();
  const CausalLM lm = make_model(c, DType::kF32);
  spread_weights(lm, 8);
  for (const std::int64_t boundary : {1, 2, 63, 64, 65, 128}) {
    const std::int64_t total = boundary + 70;
    const std::vector<std::int64_t> cu{0, boundary, total};
    auto ids = random_ids(total, c.vocab_size, 5);
    auto changed = ids;
    auto& last = changed[static_cast<std::size_t>(boundary - 1)];
    last = (last + 1) % c.vocab_size;
    auto targets = shifted(ids, cu);
    for (std::int64_t t = 0; t < boundary; ++t) {
      targets[static_cast<std::size_t>(t)] = model::kIgnoreTarget;  // B's loss alone
    }
    const at::Tensor one = lm.logits(packed(ids, cu)).narrow(0, boundary, 70);
    const at::Tensor two = lm.logits(packed(changed, cu)).narrow(0, boundary, 70);
    EXPECT_TRUE(same_bits(one, two)) << boundary;
    const auto grads_one = gradients(lm, packed(ids, cu), targets);
    const auto grads_two = gradients(lm, packed(changed, cu), targets);
    for (const auto& [name, gradient] : grads_one) {
      EXPECT_TRUE(same_bits(gradient, grads_two.at(name))) << boundary << " " << name;
    }
  }
}

TEST(CausalLM_Packing, PackedEqualsAlone) {
  const KDAConfig c = small_config();
  const CausalLM lm = make_model(c, DType::kF32);
  spread_weights(lm, 9);
  const auto a = random_ids(65, c.vocab_size, 6);
  const auto b = random_ids(1, c.vocab_size, 7);
  const auto d = random_ids(100, c.vocab_size, 8);
  const at::Tensor together = lm.logits(model::pack({a, b, d}));
  std::int64_t row = 0;
  for (const auto& ids : {a, b, d}) {
    const at::Tensor alone = lm.logits(model::pack({ids}));
    EXPECT_LT(max_difference(together.narrow(0, row, alone.size(0)), alone), 2e-5);
    row += alone.size(0);
  }
}

TEST(CausalLM_Packing, TwoRowsEqualTheFlatRun) {
  const KDAConfig c = small_config();
  const CausalLM lm = make_model(c, DType::kF32);
  const auto ids = random_ids(2 * 40, c.vocab_size, 9);
  const at::Tensor rows = lm.logits({index(ids).view({2, 40}), {}});
  const at::Tensor flat = lm.logits(packed(ids, {0, 40, 80}));
  const at::Tensor inner = lm.logits({index(ids).view({2, 40}), index({0, 25, 40, 80})});
  EXPECT_TRUE(same_bits(rows, flat));
  EXPECT_TRUE(same_bits(rows.narrow(0, 40, 40), inner.narrow(0, 40, 40)));
  EXPECT_FALSE(same_bits(rows.narrow(0, 25, 15), inner.narrow(0, 25, 15)));
}

TEST(CausalLM_Recomputation, GradientsAreTheSameBits) {
  const KDAConfig c = small_config();
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const CausalLM lm = make_model(c, compute);
    spread_weights(lm, 10);
    const std::vector<std::int64_t> cu{0, 50, 120};
    const auto ids = random_ids(120, c.vocab_size, 10);
    const auto kept = gradients(lm, packed(ids, cu), shifted(ids, cu), false);
    const auto recomputed = gradients(lm, packed(ids, cu), shifted(ids, cu), true);
    for (const auto& [name, gradient] : kept) {
      EXPECT_TRUE(same_bits(gradient, recomputed.at(name))) << name;
    }
  }
}

TEST(CausalLM_Bf16, StaysNearF32WithWideParameters) {
  const KDAConfig c = small_config();
  const CausalLM wide = make_model(c, DType::kF32);
  const CausalLM narrow = make_model(c, DType::kBF16);
  const std::vector<std::int64_t> cu{0, 50, 120};
  const auto ids = random_ids(120, c.vocab_size, 11);
  const double exact = wide.loss(packed(ids, cu), index(shifted(ids, cu))).loss_sum.item<double>();
  const model::LossOutput loss = narrow.loss(packed(ids, cu), index(shifted(ids, cu)));
  EXPECT_EQ(loss.loss_sum.scalar_type(), at::kFloat);
  EXPECT_NEAR(loss.loss_sum.item<double>() / exact, 1.0, 2e-3);
  EXPECT_NE(loss.loss_sum.item<double>(), exact);
  torch::autograd::backward({loss.loss_sum}, {});
  for (const model::Parameter& p : narrow.parameters()) {
    EXPECT_EQ(p.tensor.grad().scalar_type(), at::kFloat) << p.name;
  }
}

TEST(CausalLM_Init, StatisticsOverSeeds) {
  KDAConfig c = small_config();
  c.pad_id = 7;
  double dt_min = 1e9;
  double dt_max = -1e9;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    const CausalLM lm = make_model(c, DType::kBF16, seed);
    for (const model::Parameter& p : lm.parameters()) {
      if (p.name.ends_with("A_log")) {
        ASSERT_EQ(p.tensor.scalar_type(), at::kFloat);
        ASSERT_EQ(p.tensor.abs().max().item<float>(), 0.0F);
      } else if (p.name.ends_with("dt_bias")) {
        ASSERT_EQ(p.tensor.scalar_type(), at::kFloat);
        dt_min = std::min(dt_min, p.tensor.min().item<double>());
        dt_max = std::max(dt_max, p.tensor.max().item<double>());
      } else if (seed < 20) {
        const double mean = p.tensor.mean().item<double>();
        const double deviation = p.tensor.std().item<double>();
        const double n = static_cast<double>(p.tensor.numel());
        const double expected = p.kind == model::ParameterKind::kNorm   ? 0.0
                                : p.kind == model::ParameterKind::kConv ? 0.5 / std::sqrt(3.0)
                                                                        : 0.02;
        const double centre = p.kind == model::ParameterKind::kNorm ? 1.0 : 0.0;
        ASSERT_NEAR(mean, centre, 5.5 * expected / std::sqrt(n)) << p.name;
        if (p.kind != model::ParameterKind::kEmbedding) {  // one of its rows is zero
          ASSERT_NEAR(deviation, expected, 5.5 * expected / std::sqrt(n)) << p.name;
        }
      }
    }
    ASSERT_EQ(lm.parameters()[0].tensor[7].abs().max().item<float>(), 0.0F);
  }
  // softplus(dt_bias) in [0.001, 0.1]
  EXPECT_NEAR(dt_min, -6.907255237, 1e-3);
  EXPECT_NEAR(dt_max, -2.252168461, 1e-3);
}

TEST(CausalLM_Init, StandardGateDrawsFiniteALog) {
  KDAConfig c = small_config();
  c.gate_lower_bound.reset();
  double low = 1e9;
  double high = -1e9;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    for (const model::Parameter& p : make_model(c, DType::kBF16, seed).parameters()) {
      if (!p.name.ends_with("A_log")) continue;
      low = std::min(low, p.tensor.min().item<double>());
      high = std::max(high, p.tensor.max().item<double>());
    }
  }
  EXPECT_GE(low, 0.0);
  EXPECT_LT(low, 0.02);
  EXPECT_LE(high, std::log(16.0));
  EXPECT_GT(high, 2.76);
}

TEST(CausalLM_Init, SameSeedSameBits) {
  const KDAConfig c = small_config();
  kda::set_num_threads(1);
  const CausalLM one = make_model(c, DType::kF32, 3);
  kda::set_num_threads(2);
  const CausalLM two = make_model(c, DType::kF32, 3);
  kda::set_num_threads(0);
  const CausalLM other = make_model(c, DType::kF32, 4);
  for (std::size_t i = 0; i < one.parameters().size(); ++i) {
    EXPECT_TRUE(same_bits(one.parameters()[i].tensor, two.parameters()[i].tensor));
  }
  EXPECT_EQ(one.fingerprint(), two.fingerprint());
  EXPECT_NE(one.fingerprint(), other.fingerprint());
  EXPECT_FALSE(same_bits(one.parameters()[0].tensor, other.parameters()[0].tensor));
}

TEST(CausalLM_Refusals, DtypeIdsTargetsAndBounds) {
  const KDAConfig c = small_config();
  expect_contains(error_of([&] { make_model(c, DType::kF16); }, ErrorCode::kUnsupported), "f16");
  error_of([&] { make_model(c, DType::kI64); }, ErrorCode::kInvalidArgument);
  const CausalLM lm = make_model(c, DType::kF32);
  const auto refused = [&](const PackedIds& batch, const at::Tensor& targets, const char* part) {
    expect_contains(error_of([&] { lm.loss(batch, targets); }, ErrorCode::kInvalidArgument), part);
  };
  const at::Tensor ids = index({1, 2, 3});
  refused({index({1, 61, 3}), {}}, ids, "61");
  refused({index({1, -1, 3}), {}}, ids, "-1");
  refused({ids.to(at::kInt), {}}, ids, "ids");
  refused({ids, index({0, 2})}, ids, "cu_seqlens");
  refused({ids, index({0, 2, 1, 3})}, ids, "cu_seqlens");
  refused({ids, index({1, 3})}, ids, "cu_seqlens");
  refused({ids, index({0, 4})}, ids, "cu_seqlens");
  refused({ids, index({0, 3}).to(at::kInt)}, ids, "cu_seqlens");
  refused({ids, {}}, index({1, 2}), "targets");
  refused({ids, {}}, index({1, 2, 61}), "targets");
  refused({ids, {}}, {}, "targets");
  refused({index({}), {}}, index({}), "ids");
}

TEST(CausalLM_Observer, SeesEveryLayerAndFindsPoison) {
  const KDAConfig c = small_config();
  const CausalLM lm = make_model(c, DType::kF32);
  const PackedIds batch = model::pack({random_ids(12, c.vocab_size, 12)});
  std::vector<std::string> names;
  const model::ActivationObserver observer = [&](const std::string& name, const at::Tensor& value) {
    EXPECT_EQ(value.sizes(), (at::IntArrayRef{12, 24})) << name;
    names.push_back(name);
  };
  model::ForwardOptions options;
  options.observer = &observer;
  const at::Tensor observed = lm.logits(batch, options);
  EXPECT_TRUE(same_bits(observed, lm.logits(batch)));
  EXPECT_EQ(names, (std::vector<std::string>{"embed", "layers.0.attn", "layers.0.mlp", "layers.0",
                                             "layers.1.attn", "layers.1.mlp", "layers.1", "norm"}));
  EXPECT_EQ(lm.first_nonfinite(batch), "");
  for (const model::Parameter& p : lm.parameters()) {
    at::Tensor value = p.tensor.detach().view({-1})[0];
    const float saved = value.item<float>();
    if (p.name == "model.layers.1.mlp.down_proj.weight" || p.name == "model.norm.weight") {
      value.fill_(std::nanf(""));
      EXPECT_EQ(lm.first_nonfinite(batch), p.name == "model.norm.weight" ? "norm" : "layers.1.mlp");
    }
    value.fill_(saved);
  }
}

}  // namespace
}  // namespace kda::test
