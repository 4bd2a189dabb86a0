// The K3-like model as a whole: layer pattern, gradients, causality, packing, attention residuals,
// recomputation, routing, one batch learned.
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <map>

#include "model/causal_lm.h"
#include "model/cost.h"
#include "model/model_test_support.h"

namespace kda::test {
namespace {

using model::AttnResMode;
using model::CausalLM;
using model::KDAConfig;
using model::PackedIds;

constexpr AttnResMode kModes[] = {AttnResMode::kOff, AttnResMode::kBlock, AttnResMode::kFull};

struct Batch {
  PackedIds ids;
  at::Tensor targets;
};

// Two documents of random ids that predict within themselves.
Batch two_documents(std::int64_t first, std::int64_t total, std::int64_t vocab,
                    std::uint64_t seed) {
  const auto ids = random_ids(total, vocab, seed);
  std::vector<std::int64_t> targets(ids.begin() + 1, ids.end());
  targets.push_back(model::kIgnoreTarget);
  targets[static_cast<std::size_t>(first - 1)] = model::kIgnoreTarget;
  return {{index(ids), index({0, first, total})}, index(targets)};
}

// Gradients of all parameters; undefined where one takes no part.
std::map<std::string, at::Tensor> gradients_of(const CausalLM& lm, const Batch& batch,
                                               const model::ForwardOptions& options = {}) {
  for (const model::Parameter& p : lm.parameters()) {
    at::Tensor tensor = p.tensor;
    tensor.mutable_grad().reset();
  }
  torch::autograd::backward({lm.loss(batch.ids, batch.targets, options).loss_sum}, {});
  std::map<std::string, at::Tensor> result;
  for (const model::Parameter& p : lm.parameters())
    result[p.name] = p.tensor.grad().defined() ? p.tensor.grad().clone() : at::Tensor();
  return result;
}

bool takes_no_part(const std::string& name) {
  return name.starts_with("model.layers.0.self_attention_res");
}

TEST(K3Arch_Pattern, EveryFourthAndTheLastLayerAreMla) {
  const CausalLM lm = make_model(small_k3_config(AttnResMode::kBlock), DType::kF32);
  std::map<std::string, at::Tensor> by_name;
  for (const model::Parameter& p : lm.parameters()) {
    EXPECT_TRUE(by_name.emplace(p.name, p.tensor).second) << p.name << " twice";
    EXPECT_TRUE(p.tensor.is_leaf() && p.tensor.requires_grad()) << p.name;
    EXPECT_EQ(p.tensor.size(0) % p.head_blocks, 0) << p.name;
  }
  for (const int layer : {0, 1, 2, 3, 4}) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    EXPECT_EQ(by_name.contains(prefix + "self_attn.kv_b_proj.weight"), layer >= 3) << layer;
    EXPECT_EQ(by_name.contains(prefix + "self_attn.q_conv1d.weight"), layer < 3) << layer;
    EXPECT_EQ(by_name.contains(prefix + "mlp.gate_proj.weight"), layer == 0) << layer;
    EXPECT_EQ(by_name.contains(prefix + "block_sparse_moe.gate.weight"), layer > 0) << layer;
    EXPECT_TRUE(by_name.contains(prefix + "mlp_res_proj.weight"));
  }
  EXPECT_TRUE(by_name.contains("model.output_attn_res_norm.weight"));
  // The router reads the full width, the experts the latent one.
  EXPECT_EQ(by_name.at("model.layers.1.block_sparse_moe.gate.weight").size(1), 24);
  EXPECT_EQ(by_name.at("model.layers.1.block_sparse_moe.experts.gate_up_proj").size(2), 16);
  ASSERT_EQ(lm.buffers().size(), 4U);
  EXPECT_EQ(lm.buffers()[0].name, "model.layers.1.block_sparse_moe.gate.e_score_correction_bias");
  EXPECT_FALSE(lm.buffers()[0].tensor.requires_grad());
}

TEST(K3Arch_Parameters, FormulaEqualsTheModel) {
  for (const AttnResMode mode : kModes) {
    KDAConfig c = small_k3_config(mode);
    EXPECT_EQ(model::count_parameters(c).total(), make_model(c, DType::kF32).num_parameters());
    c.mla.output_gate = false;
    c.mla.q_lora_rank = 0;
    c.moe.latent_size = 0;
    c.moe.latent_norm = false;
    EXPECT_EQ(model::count_parameters(c).total(), make_model(c, DType::kF32).num_parameters());
  }
  const KDAConfig toy = model::K3Config::preset("toy");
  EXPECT_EQ(model::count_parameters(toy).total(), make_model(toy, DType::kF32).num_parameters());
}

// Some elements of every parameter, through the whole model.
TEST(K3Arch_Gradient, CentralDifferencesOfEveryParameter) {
  for (const AttnResMode mode : kModes) {
    KDAConfig c = small_k3_config(mode);
    c.chunk = 16;
    const CausalLM lm = make_model(c, DType::kF64);
    spread_weights(lm, 50);
    const Batch batch = two_documents(9, 26, c.vocab_size, 51);
    const auto analytic = gradients_of(lm, batch);
    const c10::NoGradGuard no_grad;
    const auto loss = [&] { return lm.loss(batch.ids, batch.targets).loss_sum.item<double>(); };
    for (const model::Parameter& p : lm.parameters()) {
      const at::Tensor& gradient = analytic.at(p.name);
      ASSERT_EQ(gradient.defined(), !takes_no_part(p.name)) << p.name;
      if (!gradient.defined()) continue;
      EXPECT_GT(gradient.abs().max().item<double>(), 1e-6) << p.name << " has no effect";
      at::Tensor flat = p.tensor.detach().view({-1});
      for (const double u : {0.15, 0.8}) {
        const auto i = static_cast<std::int64_t>(u * static_cast<double>(flat.numel()));
        double* value = flat.mutable_data_ptr<double>() + i;
        const double saved = *value;
        *value = saved + 1e-6;
        const double above = loss();
        *value = saved - 1e-6;
        const double below = loss();
        *value = saved;
        const double numeric = (above - below) / 2e-6;
        EXPECT_NEAR(gradient.reshape({-1})[i].item<double>(), numeric,
                    3e-7 * std::max(10.0, std::abs(numeric)))
            << name_of(mode) << " " << p.name << " " << i;
      }
    }
  }
}

// Experts gather tokens, so a matrix product may have other neighbours: equal up to rounding.
TEST(K3Arch_Causality, FutureTokensChangeNothing) {
  for (const AttnResMode mode : kModes) {
    const KDAConfig c = small_k3_config(mode);
    const CausalLM lm = make_model(c, DType::kF64);
    spread_weights(lm, 52);
    auto ids = random_ids(80, c.vocab_size, 53);
    const at::Tensor before = lm.logits(model::pack({ids}));
    for (const std::int64_t cut : {1, 64, 79}) {
      auto changed = ids;
      changed[static_cast<std::size_t>(cut)] = (changed[static_cast<std::size_t>(cut)] + 1) % 61;
      const at::Tensor after = lm.logits(model::pack({changed}));
      EXPECT_LT(max_difference(before.narrow(0, 0, cut), after.narrow(0, 0, cut)), 1e-12) << cut;
      EXPECT_GT(max_difference(before[cut], after[cut]), 1e-6) << cut;
    }
  }
}

TEST(K3Arch_Packing, DocumentsDoNotSeeEachOther) {
  for (const AttnResMode mode : kModes) {
    const KDAConfig c = small_k3_config(mode);
    const CausalLM lm = make_model(c, DType::kF64);
    spread_weights(lm, 54);
    for (const std::int64_t boundary : {1, 64, 65}) {
      Batch batch = two_documents(boundary, boundary + 30, c.vocab_size, 55);
      batch.targets.narrow(0, 0, boundary).fill_(model::kIgnoreTarget);  // B's loss alone
      const at::Tensor alone = lm.logits({batch.ids.ids.narrow(0, boundary, 30), {}});
      const at::Tensor packed = lm.logits(batch.ids).narrow(0, boundary, 30);
      EXPECT_LT(max_difference(alone, packed), 1e-12) << boundary;
      const auto one = gradients_of(lm, batch);
      batch.ids.ids[boundary - 1] = (batch.ids.ids[boundary - 1] + 1).remainder(61);
      const auto two = gradients_of(lm, batch);
      for (const auto& [name, gradient] : one) {
        if (!gradient.defined()) continue;
        const double scale = std::max(1.0, gradient.abs().max().item<double>());
        EXPECT_LT(max_difference(gradient, two.at(name)), 1e-11 * scale) << boundary << name;
      }
    }
  }
}

// With attention residuals the gradients of a source, which many layers read, are added in another
// order: equal up to rounding. Without, the same bits.
TEST(K3Arch_Recomputation, SameGradientsAndRoutingCountsOnce) {
  for (const AttnResMode mode : kModes) {
    for (const DType compute : {DType::kF64, DType::kF32, DType::kBF16}) {
      if (mode != AttnResMode::kOff && compute != DType::kF64) continue;
      const KDAConfig c = small_k3_config(mode);
      CausalLM lm = make_model(c, compute);
      spread_weights(lm, 56);
      const Batch batch = two_documents(30, 75, c.vocab_size, 57);
      const auto kept = gradients_of(lm, batch);
      const auto loads = lm.routing_loads();
      lm.discard_routing();
      EXPECT_TRUE(lm.routing_loads().empty());
      model::ForwardOptions options;
      options.recompute_blocks = true;
      const auto recomputed = gradients_of(lm, batch, options);
      for (const auto& [name, gradient] : kept) {
        ASSERT_EQ(gradient.defined(), recomputed.at(name).defined()) << name;
        if (!gradient.defined()) continue;
        const double largest = gradient.abs().max().item<double>();
        EXPECT_LE(max_difference(gradient, recomputed.at(name)),
                  mode == AttnResMode::kOff ? 0.0 : 1e-12 * std::max(1.0, largest))
            << name_of(mode) << " " << name;
      }
      const auto again = lm.routing_loads();
      ASSERT_EQ(again.size(), 4U);
      for (std::size_t i = 0; i < again.size(); ++i) {
        EXPECT_EQ(again[i].layer, static_cast<std::int64_t>(i) + 1);
        EXPECT_EQ(again[i].max_load, loads[i].max_load);
        EXPECT_EQ(again[i].min_load, loads[i].min_load);
      }
    }
  }
}

TEST(K3Arch_Routing, TheBiasMovesOnlyWithUpdates) {
  const KDAConfig c = small_k3_config();
  CausalLM lm = make_model(c, DType::kF32);
  spread_weights(lm, 58);
  const Batch batch = two_documents(100, 200, c.vocab_size, 59);
  const std::uint64_t before = lm.fingerprint();
  lm.update_routing();
  lm.token_losses(batch.ids, batch.targets);
  lm.logits(batch.ids);
  {
    const c10::NoGradGuard no_grad;
    lm.loss(batch.ids, batch.targets);
  }
  model::ForwardOptions uncounted;
  uncounted.count_routing = false;
  gradients_of(lm, batch, uncounted);
  EXPECT_TRUE(lm.routing_loads().empty());
  lm.update_routing();
  EXPECT_EQ(lm.fingerprint(), before);
  double first = 0;
  double last = 0;
  for (int step = 0; step < 12; ++step) {
    gradients_of(lm, batch);  // the weights stay: only the routing moves
    last = 0;
    for (const model::RoutingLoad& load : lm.routing_loads())
      last += load.max_load / 4;
    if (step == 0) first = last;
    lm.update_routing();
    EXPECT_TRUE(lm.routing_loads().empty());
  }
  EXPECT_NE(lm.fingerprint(), before);
  EXPECT_LT(last - 1, 0.5 * (first - 1));
}

// What every place must see, rebuilt from the outputs that an observer gets.
TEST(K3Arch_AttnRes, TheFinalNormSeesTheSourcesOfEachMode) {
  for (const AttnResMode mode : {AttnResMode::kBlock, AttnResMode::kFull}) {
    const KDAConfig c = small_k3_config(mode);  // 5 layers in blocks of 2: 2, 2 and 1
    const CausalLM lm = make_model(c, DType::kF64);
    spread_weights(lm, 60);
    std::map<std::string, at::Tensor> seen;
    const model::ActivationObserver observer =
        [&](const std::string& name, const at::Tensor& value) { seen[name] = value.clone(); };
    model::ForwardOptions options;
    options.observer = &observer;
    lm.logits(model::pack({random_ids(20, c.vocab_size, 61)}), options);
    const auto output = [&](int layer, const char* part) {
      return seen.at("layers." + std::to_string(layer) + "." + part);
    };
    std::vector<at::Tensor> sources{seen.at("embed")};
    for (int layer = 0; layer < 5; ++layer) {
      for (const char* part : {"attn", "mlp"}) {
        const bool fresh =
            mode == AttnResMode::kFull || (layer % 2 == 0 && std::string(part) == "attn");
        if (fresh) {
          sources.push_back(output(layer, part));
        } else {
          sources.back() = sources.back() + output(layer, part);
        }
      }
      EXPECT_LT(max_difference(seen.at("layers." + std::to_string(layer)), sources.back()), 1e-12);
    }
    EXPECT_EQ(sources.size(), mode == AttnResMode::kFull ? 11U : 4U);
    std::map<std::string, at::Tensor> weights;
    for (const model::Parameter& p : lm.parameters())
      weights[p.name] = p.tensor.detach();
    const at::Tensor all = at::stack(sources);  // [M,tokens,d]
    const at::Tensor keys = all * at::rsqrt((all * all).mean(-1, true) + c.norm_eps);
    const at::Tensor query = weights.at("model.output_attn_res_norm.weight") *
                             weights.at("model.output_attn_res_proj.weight");
    const at::Tensor p = (keys * query).sum(-1, true).softmax(0);
    const at::Tensor h = (p * all).sum(0);
    const at::Tensor expected =
        h * at::rsqrt((h * h).mean(-1, true) + c.norm_eps) * weights.at("model.norm.weight");
    EXPECT_LT(max_difference(seen.at("norm"), expected), 1e-12) << name_of(mode);
  }
}

TEST(K3Arch_AttnRes, StartsAtTheMeanOfTheSources) {
  // Queries start at zero: the same weights with and without attention residuals already differ.
  const KDAConfig c = small_k3_config(AttnResMode::kBlock);
  const CausalLM with = make_model(c, DType::kF64);
  const CausalLM without = make_model(small_k3_config(), DType::kF64);
  for (const model::Parameter& p : with.parameters()) {
    if (p.kind == model::ParameterKind::kQuery) {
      EXPECT_EQ(p.tensor.abs().max().item<double>(), 0.0) << p.name;
    }
  }
  std::map<std::string, at::Tensor> seen;
  const model::ActivationObserver observer = [&](const std::string& name, const at::Tensor& value) {
    seen[name] = value.clone();
  };
  model::ForwardOptions options;
  options.observer = &observer;
  const PackedIds ids = model::pack({random_ids(20, c.vocab_size, 62)});
  const at::Tensor logits = with.logits(ids, options);
  EXPECT_GT(max_difference(logits, without.logits(ids)), 1e-3);
  // R = embedding, layers 0 and 1, layers 2 and 3; x = layer 4.
  const at::Tensor h =
      (seen.at("embed") + seen.at("layers.1") + seen.at("layers.3") + seen.at("layers.4")) / 4;
  const at::Tensor expected = h * at::rsqrt((h * h).mean(-1, true) + c.norm_eps);
  EXPECT_LT(max_difference(seen.at("norm"), expected), 1e-12);
}

TEST(K3Arch_QkClip, LargestLogitsOfTheMlaLayers) {
  const KDAConfig c = small_k3_config(AttnResMode::kBlock);
  const CausalLM lm = make_model(c, DType::kF32);
  spread_weights(lm, 63);
  const Batch batch = two_documents(20, 50, c.vocab_size, 64);
  for (const bool recompute : {false, true}) {
    std::vector<model::LargestLogits> largest;
    model::ForwardOptions options;
    options.largest_logits = &largest;
    options.recompute_blocks = recompute;
    lm.loss(batch.ids, batch.targets, options);
    ASSERT_EQ(largest.size(), 2U);
    EXPECT_EQ(largest[0].layer, 3);
    EXPECT_EQ(largest[1].layer, 4);
    EXPECT_EQ(largest[1].logits.sizes(), (at::IntArrayRef{3}));
    EXPECT_TRUE(std::isfinite(largest[1].logits.max().item<float>()));
  }
}

TEST(K3Arch_Training, OneBatchIsLearned) {
  KDAConfig c = KDAConfig::preset("k3-tiny");
  c.attn_res.mode = AttnResMode::kBlock;
  CausalLM lm = make_model(c, DType::kF32);
  const Batch batch = two_documents(12, 30, c.vocab_size, 65);
  std::vector<at::Tensor> moments(lm.parameters().size());
  double first = 0;
  double last = 0;
  for (int step = 0; step < 40; ++step) {
    const auto gradients = gradients_of(lm, batch);
    const c10::NoGradGuard no_grad;
    const model::LossOutput loss = lm.loss(batch.ids, batch.targets);
    last = loss.loss_sum.item<double>() / static_cast<double>(loss.num_tokens);
    if (step == 0) first = last;
    std::size_t i = 0;
    for (const model::Parameter& p : lm.parameters()) {
      at::Tensor& moment = moments[i++];
      const at::Tensor& gradient = gradients.at(p.name);
      if (!gradient.defined()) continue;
      moment = moment.defined() ? moment * 0.9 + gradient * gradient * 0.1 : gradient * gradient;
      at::Tensor(p.tensor).sub_(gradient / (moment.sqrt() + 1e-8) * 5e-3);
    }
    lm.update_routing();
  }
  EXPECT_NEAR(first, std::log(256.0), 0.3);
  EXPECT_LT(last, 0.5);
}

}  // namespace
}  // namespace kda::test
