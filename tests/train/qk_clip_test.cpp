#include "train/qk_clip.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "train/evaluate.h"
#include "train/fixture.h"

namespace kda::train {
namespace {

/// The tiny K3-like model, whose MLA layers this is about.
struct K3 {
  model::KDAConfig config = model::KDAConfig::preset("k3-tiny");
  model::CausalLM model{config, {}};
  std::int64_t layer = 0;

  K3() {
    while (!config.is_mla(layer))
      ++layer;
  }
  at::Tensor weight(const std::string& name) const {
    const std::string full = "model.layers." + std::to_string(layer) + ".self_attn." + name;
    for (const model::Parameter& p : model.parameters()) {
      if (p.name == full) return p.tensor.detach();
    }
    ADD_FAILURE() << full;
    return {};
  }
  at::Tensor query() const {
    return weight(config.mla.q_lora_rank > 0 ? "q_b_proj.weight" : "q_proj.weight")
        .view({config.mla.num_heads, config.mla.qk_head_dim(), -1});
  }
  at::Tensor kv_b() const {
    return weight("kv_b_proj.weight")
        .view({config.mla.num_heads, config.mla.qk_nope_head_dim + config.mla.v_head_dim, -1});
  }
};

double largest_entry(const at::Tensor& t) { return t.abs().max().item<double>(); }

TEST(QkClip, HeadsAboveTheLimitAreScaledOthersAreNot) {
  K3 k3;
  const model::MlaConfig& mla = k3.config.mla;
  const std::int64_t n = mla.qk_nope_head_dim;
  const at::Tensor query = k3.query().clone();
  const at::Tensor kv_b = k3.kv_b().clone();
  // Head h has seen 40 (h + 1): with a limit of 60 the first is left alone.
  const at::Tensor logits = at::arange(1, mla.num_heads + 1, at::kFloat) * 40;
  QkClip clip(k3.config, k3.model.parameters(), 60);
  clip.observe({{k3.layer, logits * 0.5}});
  clip.observe({{k3.layer, logits}});  // the larger micro-batch counts
  clip.observe({{k3.layer, logits * 0.1}});
  clip.apply();
  for (std::int64_t h = 0; h < mla.num_heads; ++h) {
    const double gamma = std::min(1.0, 60.0 / (40.0 * static_cast<double>(h + 1)));
    const auto differs = [&](const at::Tensor& now, const at::Tensor& was, double factor) {
      return largest_entry(now - was * factor) / std::max(1e-30, largest_entry(was));
    };
    EXPECT_LT(differs(k3.query()[h].narrow(0, 0, n), query[h].narrow(0, 0, n), std::sqrt(gamma)),
              1e-6);
    EXPECT_LT(differs(k3.kv_b()[h].narrow(0, 0, n), kv_b[h].narrow(0, 0, n), std::sqrt(gamma)),
              1e-6);
    if (mla.qk_rope_head_dim > 0) {
      EXPECT_LT(differs(k3.query()[h].narrow(0, n, mla.qk_rope_head_dim),
                        query[h].narrow(0, n, mla.qk_rope_head_dim), gamma),
                1e-6);
    }
    EXPECT_TRUE(
        k3.kv_b()[h].narrow(0, n, mla.v_head_dim).equal(kv_b[h].narrow(0, n, mla.v_head_dim)));
  }
  EXPECT_TRUE(k3.query()[0].equal(query[0]));
  EXPECT_FALSE(k3.query()[mla.num_heads - 1].equal(query[mla.num_heads - 1]));
}

TEST(QkClip, WhatWasAppliedOrDiscardedIsForgotten) {
  K3 k3;
  const at::Tensor query = k3.query().clone();
  QkClip clip(k3.config, k3.model.parameters(), 1);
  const at::Tensor logits = at::arange(1, k3.config.mla.num_heads + 1, at::kFloat) * 5;
  clip.observe({{k3.layer, logits}});
  clip.discard();
  clip.apply();
  EXPECT_TRUE(k3.query().equal(query));
  clip.observe({{k3.layer, logits}});
  clip.apply();
  const at::Tensor once = k3.query().clone();
  EXPECT_FALSE(once.equal(query));
  clip.apply();
  EXPECT_TRUE(k3.query().equal(once));
}

/// With the model's own logits: what they were above the limit they are at it afterwards.
TEST(QkClip, BringsTheLogitsOfAModelDownToTheLimit) {
  K3 k3;
  text::PackedBatch batch;
  batch.rows = 1;
  batch.seq_len = 40;
  batch.cu_seqlens = {0, 40};
  for (std::int64_t t = 0; t < 40; ++t) {
    batch.inputs.push_back((t * 29 + 7) % k3.config.vocab_size);
    batch.targets.push_back((t * 13 + 1) % k3.config.vocab_size);
  }
  const BatchTensors tensors = to_tensors(batch);
  const auto logits = [&] {
    std::vector<model::LargestLogits> seen;
    model::ForwardOptions options;
    options.largest_logits = &seen;
    k3.model.loss(tensors.packed, tensors.targets, options);
    return seen;
  };
  const auto before = logits();
  ASSERT_EQ(static_cast<std::int64_t>(before.size()), k3.config.num_mla_layers());
  const double tau = 0.5 * before[0].logits.max().item<double>();
  ASSERT_GT(tau, 0);
  QkClip clip(k3.config, k3.model.parameters(), tau);
  clip.observe(before);
  clip.apply();
  // Only the first MLA layer sees unchanged inputs.
  EXPECT_LE(logits()[0].logits.max().item<double>(), tau * 1.001);
}

TEST(QkClip, ARunWithMuonUsesIt) {
  testing::ScratchFolder folder;
  std::vector<std::map<std::string, std::string>> hashes;
  for (const double limit : {0.0, 1e-3}) {
    testing::RecordingReporter reporter;
    TrainRequest request =
        testing::tiny_request(folder / ("run" + std::to_string(hashes.size())), 2);
    request.options.preset = "k3-tiny";
    request.options.optimizer = "muon";
    request.options.qk_clip = limit;
    const TrainOutcome outcome = train(request, reporter);
    hashes.push_back(testing::tensor_hashes(outcome.last_checkpoint));
  }
  EXPECT_NE(hashes[0].at("model.safetensors"), hashes[1].at("model.safetensors"));
}

}  // namespace
}  // namespace kda::train
