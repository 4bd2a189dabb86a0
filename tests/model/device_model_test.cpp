// The K3-like model on a CUDA device against the same model in f32 on the host: logits, loss,
// gradients, recomputation, decoding. Same seed, same weights.
#include <ATen/ops/argmax.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdio>
#include <map>

#include "model/causal_lm.h"
#include "model/cost.h"
#include "model/device_test_support.h"
#include "model/gated_mla.h"
#include "model/generate.h"
#include "model/packed_attention.h"

namespace kda::test {
namespace {

using model::AttnResMode;
using model::CausalLM;
using model::KDAConfig;

// Widths that the grouped products of the device take; query and value heads differ.
KDAConfig device_config(AttnResMode mode) {
  KDAConfig c = small_k3_config(mode);
  c.vocab_size = 128;
  c.hidden_size = 64;
  c.num_heads = c.num_v_heads = 2;
  c.head_k_dim = c.head_v_dim = 32;
  c.gate_low_rank = 16;
  c.intermediate_size = 96;
  c.mla = {3, 0, 24, 12, 4, 20, true, 1e-6};
  c.moe.intermediate_size = 24;
  c.moe.latent_size = 32;
  c.chunk = 64;
  return c;
}

CausalLM make_on(const KDAConfig& config, DType compute, c10::Device device) {
  model::ModelOptions options;
  options.compute = compute;
  options.device = device;
  options.seed = 7;
  return CausalLM(config, options);
}

class DeviceModel : public DeviceTest {
 protected:
  static DType compute() { return GetParam() == at::kFloat ? DType::kF32 : DType::kBF16; }
  static bool narrow() { return GetParam() == at::kBFloat16; }
  static constexpr std::int64_t kTokens = 330;
  static model::PackedIds batch() {
    return {index(random_ids(kTokens, 128, 3)), index({0, 1, 70, 200, kTokens})};
  }
};

std::map<std::string, at::Tensor> host_gradients(const CausalLM& lm, const model::PackedIds& ids,
                                                 bool recompute) {
  for (const model::Parameter& p : lm.parameters()) {
    at::Tensor tensor = p.tensor;
    tensor.mutable_grad().reset();
  }
  model::ForwardOptions options;
  options.recompute_blocks = recompute;
  const at::Tensor targets = ids.ids.roll(-1);
  torch::autograd::backward({lm.loss(ids, targets, options).loss_sum}, {});
  std::map<std::string, at::Tensor> result;
  for (const model::Parameter& p : lm.parameters()) {
    if (p.tensor.grad().defined()) result[p.name] = p.tensor.grad().to(at::kCPU).clone();
  }
  return result;
}

TEST_P(DeviceModel, LogitsLossAndGradientsEqualTheHosts) {
  for (const AttnResMode mode : {AttnResMode::kOff, AttnResMode::kBlock, AttnResMode::kFull}) {
    const KDAConfig c = device_config(mode);
    const CausalLM host = make_on(c, DType::kF32, c10::kCPU);
    const CausalLM device = make_on(c, compute(), c10::Device(c10::kCUDA, 0));
    const at::Tensor expected = host.logits(batch()).to(at::kDouble);
    // In bf16 a token in a hundred may go to another expert.
    EXPECT_LT(relative_rmse(device.logits(batch()), expected), narrow() ? 3e-2 : 2e-5)
        << name_of(mode);
    const auto want = host_gradients(host, batch(), false);
    const auto got = host_gradients(device, batch(), false);
    ASSERT_EQ(want.size(), got.size());
    for (const auto& [name, gradient] : want) {
      EXPECT_LT(relative_rmse(got.at(name), gradient.to(at::kDouble)), narrow() ? 0.25 : 2e-4)
          << name_of(mode) << " " << name;
    }
  }
}

TEST_P(DeviceModel, TwoRunsAndRecomputationGiveTheSameBits) {
  const KDAConfig c = device_config(AttnResMode::kOff);
  const CausalLM lm = make_on(c, compute(), c10::Device(c10::kCUDA, 0));
  const auto once = host_gradients(lm, batch(), false);
  const auto again = host_gradients(lm, batch(), false);
  const auto recomputed = host_gradients(lm, batch(), true);
  for (const auto& [name, gradient] : once) {
    EXPECT_TRUE(same_bits(gradient, again.at(name))) << name;
    EXPECT_TRUE(same_bits(gradient, recomputed.at(name))) << name << " recomputed";
  }
}

TEST_P(DeviceModel, DecodingEqualsTheFullForward) {
  const KDAConfig c = device_config(AttnResMode::kBlock);
  const CausalLM lm = make_on(c, compute(), c10::Device(c10::kCUDA, 0));
  const auto ids = random_ids(150, 128, 9);
  const at::Tensor full = lm.logits(model::pack({ids})).to(at::kCPU, at::kDouble);
  for (const std::int64_t piece : {1, 63, 64, 150}) {
    model::DecodeState state = lm.new_state(2);
    at::Tensor logits;
    for (std::int64_t begin = 0; begin < 150; begin += piece) {
      const std::int64_t end = std::min<std::int64_t>(150, begin + piece);
      // The second row is a neighbour with fewer tokens.
      std::vector<std::int64_t> both(ids.begin() + begin, ids.begin() + end);
      const bool neighbour = begin == 0 && piece > 1;
      if (neighbour) both.push_back(5);
      logits = lm.prefill({index(both), index({0, end - begin, end - begin + (neighbour ? 1 : 0)})},
                          state);
    }
    EXPECT_LT(relative_rmse(logits[0], full[149]), narrow() ? 5e-2 : 1e-4) << piece;
  }
  model::GenerateOptions options;
  options.max_new_tokens = 8;
  options.prefill_piece = 64;
  const std::vector<std::int64_t> prompt(ids.begin(), ids.begin() + 70);
  const auto rows = model::generate(lm, {prompt, {3}}, options);
  if (!narrow()) {
    const CausalLM host = make_on(c, DType::kF32, c10::kCPU);
    EXPECT_EQ(rows[0].ids, model::generate(host, {prompt}, options)[0].ids);
    EXPECT_EQ(rows[1].ids, model::generate(host, {{3}}, options)[0].ids);
  }
}

TEST_P(DeviceModel, AttentionEqualsTheComposedFormInF64) {
  const std::vector<std::int64_t> cu{0, 0, 130, 131, 400};
  struct Widths {
    std::int64_t k, v;
  };
  for (const Widths w : {Widths{64, 64}, Widths{16, 16}, Widths{20, 12}, Widths{12, 64}}) {
    std::vector<std::vector<at::Tensor>> results;
    for (const bool device : {false, true}) {
      const c10::Device where = device ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
      const model::Sequences sequences(index(cu), where);
      std::vector<at::Tensor> inputs;
      for (const auto& [width, seed] :
           {std::pair(w.k, 40U), std::pair(w.k, 41U), std::pair(w.v, 42U)}) {
        at::Tensor values = random_tensor({400, 3, width}, seed, GetParam());
        values = device ? values.to(where) : values.to(at::kDouble);
        inputs.push_back(values.set_requires_grad(true));
      }
      const auto attend = device ? model::packed_attention : model::packed_attention_composed;
      const at::Tensor o = attend(inputs[0], inputs[1], inputs[2], sequences, 0.6);
      const at::Tensor seed = random_tensor(o.sizes(), 43, GetParam());
      torch::autograd::backward({o}, {device ? seed.to(where) : seed.to(at::kDouble)});
      results.push_back({o, inputs[0].grad(), inputs[1].grad(), inputs[2].grad()});
    }
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_LT(relative_rmse(results[1][i], results[0][i]), narrow() ? 1e-2 : 2e-6)
          << w.k << " " << w.v << " output " << i;
    }
  }
}

// The bytes that libtorch's allocator gave out at the worst moment of a step.
TEST_P(DeviceModel, MemoryEstimateIsNearTheMeasuredPeak) {
  const c10::Device where(c10::kCUDA, 0);
  KDAConfig wide = model::K3Config::preset("0.5b");
  wide.num_layers = 8;
  wide.vocab_size = 16000;
  KDAConfig deep = wide;
  deep.attn_res = {AttnResMode::kBlock, 2};
  for (const KDAConfig& c :
       {KDAConfig::preset("toy"), model::K3Config::preset("toy"), wide, deep}) {
    const CausalLM lm = make_on(c, compute(), where);
    for (const bool recompute : {false, true}) {
      model::TrainingShape shape;
      shape.tokens_per_micro_batch = 8192;
      shape.compute = compute();
      shape.recompute_blocks = recompute;
      shape.optimizer_bytes_per_parameter = 0;
      shape.on_cuda = true;
      const model::PackedIds ids{index(random_ids(8192, c.vocab_size, 3)).view({8, 1024}), {}};
      model::ForwardOptions options;
      options.recompute_blocks = recompute;
      auto* allocator = c10::getDeviceAllocator(c10::kCUDA);
      for (int step = 0; step < 2; ++step) {  // the first makes the gradients
        allocator->resetPeakStats(0);
        torch::autograd::backward({lm.loss(ids, ids.ids.roll(-1), options).loss_sum}, {});
      }
      const auto peak = static_cast<double>(allocator->getDeviceStats(0).allocated_bytes[0].peak);
      const auto estimate = model::estimate_training_memory(c, shape);
      const auto total = static_cast<double>(estimate.total_bytes());
      std::printf(
          "memory: d %lld, layers %lld, depth %s, recompute %d: estimated %.1f MB, "
          "measured %.1f MB\n",
          static_cast<long long>(c.hidden_size), static_cast<long long>(c.num_layers),
          name_of(c.attn_res.mode), recompute ? 1 : 0, total / 1e6, peak / 1e6);
      EXPECT_NEAR(total / peak, 1.0, 0.15)
          << c.num_layers << " layers of " << c.hidden_size << ", depth "
          << name_of(c.attn_res.mode) << ", recompute " << recompute << ": estimated "
          << total / 1e6 << " MB (activations "
          << static_cast<double>(estimate.activations_bytes) / 1e6 << ", scratch "
          << static_cast<double>(estimate.scratch_bytes) / 1e6 << "), measured " << peak / 1e6;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, DeviceModel, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& param) {
                           return std::string(param.param == at::kFloat ? "f32" : "bf16");
                         });

}  // namespace
}  // namespace kda::test
