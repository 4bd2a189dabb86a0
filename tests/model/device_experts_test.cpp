// Router, experts and load balancing on a CUDA device against the same in f64 on the host.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <string>
#include <vector>

#include "model/attn_res.h"
#include "model/device_test_support.h"
#include "model/latent_moe.h"

namespace kda::test {
namespace {

using model::LatentMoe;
using model::MoeConfig;
using Named = std::map<std::string, at::Tensor>;

constexpr std::int64_t kWidth = 64;

class DeviceExperts : public DeviceTest {};

MoeConfig moe_config() {
  MoeConfig c;
  c.num_experts = 12;
  c.num_experts_per_token = 3;
  c.num_shared_experts = 1;
  c.intermediate_size = 40;
  c.latent_size = 32;
  c.latent_norm = true;
  return c;
}

// The same weights, exact in bf16, whatever the precision and the device. Expert 5 is never chosen.
LatentMoe make_moe(DType compute, c10::Device device, const MoeConfig& config) {
  const auto tensors =
      at::TensorOptions().dtype(compute == DType::kF64 ? at::kDouble : at::kFloat).device(device);
  LatentMoe moe(config, kWidth, {model::ActivationKind::kSitu, 4.0, 25.0}, 1e-5,
                {compute, "auto", tensors});
  std::vector<model::Parameter> parameters;
  moe.collect("", parameters);
  std::uint64_t seed = 10;
  for (model::Parameter& p : parameters)
    p.tensor.detach().copy_(random_tensor(p.tensor.sizes(), seed++, at::kBFloat16) * 0.25);
  at::Tensor bias = random_tensor({config.num_experts}, 9, at::kBFloat16) * 0.125;
  if (config.num_experts_per_token < config.num_experts) bias[5] = -100.0;
  moe.selection_bias().detach().copy_(bias);
  return moe;
}

Named run(const LatentMoe& moe, const at::Tensor& x_in, const at::Tensor& seed) {
  at::Tensor x = x_in.detach().clone().set_requires_grad(true);
  const at::Tensor y = moe.forward(x);
  torch::autograd::backward({y}, {seed});
  Named all{{"y", y.detach()}, {"x", x.grad()}};
  std::vector<model::Parameter> parameters;
  moe.collect("", parameters);
  for (const model::Parameter& p : parameters) {
    all[p.name] = p.tensor.grad().clone();
    at::Tensor(p.tensor).mutable_grad() = at::Tensor();
  }
  return all;
}

void expect_near_f64(at::ScalarType type, const MoeConfig& config, std::int64_t tokens) {
  const DType compute = type == at::kBFloat16 ? DType::kBF16 : DType::kF32;
  const LatentMoe device = make_moe(compute, at::Device(at::kCUDA, 0), config);
  const LatentMoe host = make_moe(DType::kF64, at::kCPU, config);
  const at::Tensor x = random_tensor({tokens, kWidth}, 1, type);
  const at::Tensor seed = random_tensor({tokens, kWidth}, 2, type);
  const Named want = run(host, x.to(at::kDouble), seed.to(at::kDouble));
  const Named got = run(device, x.to(at::kCUDA), seed.to(at::kCUDA));
  const Named again = run(device, x.to(at::kCUDA), seed.to(at::kCUDA));
  ASSERT_EQ(want.size(), got.size());
  for (const auto& [name, value] : want) {
    EXPECT_LT(relative_rmse(got.at(name), value), type == at::kBFloat16 ? 0.02 : 1e-5) << name;
    EXPECT_TRUE(same_bits(got.at(name), again.at(name))) << name << " differs between two runs";
  }
}

TEST_P(DeviceExperts, ForwardAndGradientsNearF64) {
  expect_near_f64(GetParam(), moe_config(), 333);
  expect_near_f64(GetParam(), moe_config(), 1);
}

TEST_P(DeviceExperts, WidthsThatAreNoMultipleOfSixteenBytes) {
  MoeConfig c = moe_config();
  c.latent_size = 0;
  c.latent_norm = false;
  c.intermediate_size = 36;
  expect_near_f64(GetParam(), c, 100);
}

TEST_P(DeviceExperts, EveryExpertForEveryToken) {
  MoeConfig c = moe_config();
  c.num_experts = 4;
  c.num_experts_per_token = 4;
  expect_near_f64(GetParam(), c, 65);
}

TEST_P(DeviceExperts, AnIdleExpertGetsAZeroGradient) {
  const DType compute = GetParam() == at::kBFloat16 ? DType::kBF16 : DType::kF32;
  const LatentMoe moe = make_moe(compute, at::Device(at::kCUDA, 0), moe_config());
  const at::Tensor x = random_tensor({50, kWidth}, 3, GetParam()).to(at::kCUDA);
  for (int repeat = 0; repeat < 3; ++repeat) {  // also in memory that others have used
    const Named got = run(moe, x, x);
    EXPECT_EQ(got.at("experts.gate_up_proj")[5].abs().max().item<float>(), 0.0F);
    EXPECT_EQ(got.at("experts.down_proj")[5].abs().max().item<float>(), 0.0F);
    EXPECT_GT(got.at("experts.down_proj")[0].abs().max().item<float>(), 0.0F);
  }
}

TEST_P(DeviceExperts, BalancingEqualsTheHost) {
  const at::Tensor scores = random_tensor({500, 12}, 4, at::kFloat) * 0.5 + 0.5;
  const at::Tensor start = random_tensor({12}, 5, at::kFloat) * 0.1;
  const auto routing_on = [&](c10::Device device) {
    const auto [values, indices] = (scores + start).topk(4, -1);
    model::Routing routing;
    routing.scores = scores.to(device);
    routing.experts = indices.narrow(1, 0, 3).contiguous().to(device);
    routing.threshold = values.select(1, 3).contiguous().to(device);
    return routing;
  };
  for (const model::BalanceKind kind :
       {model::BalanceKind::kQuantile, model::BalanceKind::kQuantileHistogram,
        model::BalanceKind::kSign}) {
    at::Tensor host = start.clone();
    at::Tensor device = start.to(at::kCUDA);
    model::RoutingStatistics a({kind});
    model::RoutingStatistics b({kind});
    a.add(routing_on(at::kCPU), host);
    b.add(routing_on(at::Device(at::kCUDA, 0)), device);
    EXPECT_TRUE(same_bits(a.loads(), b.loads().to(at::kCPU)));
    a.update(host);
    b.update(device);
    EXPECT_LT(max_difference(host, device.to(at::kCPU)), 1e-6) << name_of(kind);
  }
}

TEST_P(DeviceExperts, TwoPhaseDepthAttentionEqualsTheDirectForm) {
  std::vector<at::Tensor> sources;
  for (std::uint64_t i = 0; i < 4; ++i)
    sources.push_back(random_tensor({30, kWidth}, 20 + i, GetParam()).to(at::kCUDA));
  const model::AttnResWeights place{random_tensor({kWidth}, 30, at::kFloat).to(at::kCUDA),
                                    random_tensor({1, kWidth}, 31, at::kFloat).to(at::kCUDA)};
  const at::Tensor direct = model::attn_res(sources, place.gain, place.query, 1e-5);
  const at::Tensor running = sources.back();
  sources.pop_back();
  const auto partial = model::attn_res_partials(sources, {place}, 1e-5)[0];
  EXPECT_LT(max_difference(model::attn_res_merge(partial, running, place, 1e-5), direct), 1e-5);
}

TEST_P(DeviceExperts, DepthAttentionNearF64) {
  for (const std::int64_t count : {1, 3, 9, 65}) {  // the last is more than the fused kernel takes
    std::vector<at::Tensor> device;
    std::vector<at::Tensor> host;
    for (std::int64_t i = 0; i < count; ++i) {
      const at::Tensor source =
          random_tensor({77, kWidth}, 40 + static_cast<std::uint64_t>(i), GetParam());
      device.push_back(source.to(at::kCUDA).set_requires_grad(true));
      host.push_back(source.to(at::kDouble).set_requires_grad(true));
    }
    const at::Tensor gain = random_tensor({kWidth}, 50, at::kFloat);
    const at::Tensor query = random_tensor({1, kWidth}, 51, at::kFloat);
    const at::Tensor dh = random_tensor({77, kWidth}, 52, at::kFloat);
    for (const at::Tensor& parameter : {gain, query}) {
      device.push_back(parameter.to(at::kCUDA).set_requires_grad(true));
      host.push_back(parameter.to(at::kDouble).set_requires_grad(true));
    }
    const auto run_on = [&](std::vector<at::Tensor> in, const at::Tensor& seed) {
      const at::Tensor q = in.back();
      in.pop_back();
      const at::Tensor g = in.back();
      in.pop_back();
      const at::Tensor h = model::attn_res(in, g, q, 1e-5);
      torch::autograd::backward({h}, {seed});
      return h;
    };
    EXPECT_LT(relative_rmse(run_on(device, dh.to(at::kCUDA)), run_on(host, dh.to(at::kDouble))),
              1e-5)
        << count;
    for (std::size_t i = 0; i < host.size(); ++i) {
      const bool rounded = GetParam() == at::kBFloat16 && i + 2 < host.size();
      // With one source nothing reaches gain and query: the weight is 1 whatever they are.
      if (count == 1 && i > 0) {
        EXPECT_LT(device[i].grad().abs().max().item<float>(), 1e-3F);
        continue;
      }
      EXPECT_LT(relative_rmse(device[i].grad(), host[i].grad()), rounded ? 0.005 : 1e-4)
          << count << " sources, gradient " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, DeviceExperts, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& type) {
                           return std::string(type.param == at::kBFloat16 ? "bf16" : "f32");
                         });

}  // namespace
}  // namespace kda::test
