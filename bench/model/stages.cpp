#include "stages.h"

#include <ATen/ops/conv1d.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>

#include "binding/functional.h"
#include "model/cross_entropy.h"
#include "model/gated_norm.h"
#include "model/linear.h"
#include "model/rms_norm.h"
#include "model/short_conv.h"
#include "model/swiglu.h"
#include "model/tensors.h"

namespace kda::bench {
namespace {

using Tensors = std::vector<at::Tensor>;

// Times f(inputs) and its backward with random output gradients.
Stage time_stage(const std::string& name, double count, double seconds, Tensors inputs,
                 const std::function<Tensors(const Tensors&)>& f) {
  for (at::Tensor& input : inputs)
    input.set_requires_grad(true);
  Tensors gradients;
  for (const at::Tensor& out : f(inputs))
    gradients.push_back(at::ones(out.sizes(), out.options()));
  Stage stage;
  stage.name = name;
  stage.count = count;
  stage.forward = time_it([&] { f(inputs); }, seconds);
  stage.both = time_it(
      [&] {
        torch::autograd::backward(f(inputs), gradients);
        for (at::Tensor& input : inputs)
          input.mutable_grad().reset();
      },
      seconds);
  return stage;
}

}  // namespace

Timing time_it(const std::function<void()>& work, double seconds) {
  using Clock = std::chrono::steady_clock;
  work();
  std::vector<double> ms;
  const auto start = Clock::now();
  while (ms.size() < 3 || std::chrono::duration<double>(Clock::now() - start).count() < seconds) {
    const auto begin = Clock::now();
    work();
    ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  }
  std::sort(ms.begin(), ms.end());
  return {ms[ms.size() / 2], ms.front(), ms.back()};
}

std::vector<Stage> time_stages(const model::KDAConfig& c, DType compute, std::int64_t tokens,
                               double seconds) {
  const at::ScalarType type = model::scalar_type_of(compute);
  const auto activation = [&](std::int64_t width) {
    return at::randn({tokens, width}, at::TensorOptions().dtype(type));
  };
  const auto weight = [&](at::IntArrayRef shape) { return at::randn(shape).mul_(0.02); };
  const at::Tensor cu = model::index_tensor({0, tokens});
  const auto layers = static_cast<double>(c.num_layers);
  const std::int64_t d = c.hidden_size;
  std::vector<Stage> stages;
  const auto add = [&](const std::string& name, double count, Tensors inputs,
                       const std::function<Tensors(const Tensors&)>& f) {
    stages.push_back(time_stage(name, count, seconds, std::move(inputs), f));
  };

  const std::int64_t columns = 2 * c.k_width() + 2 * c.v_width() + c.gate_low_rank + c.num_v_heads;
  add("linear inputs", layers, {activation(d), weight({columns, d})},
      [](const Tensors& in) { return Tensors{model::linear_one(in[0], in[1])}; });
  add("short_conv q", 3 * layers, {activation(c.k_width()), weight({c.k_width(), 1, c.conv_size})},
      [&](const Tensors& in) { return Tensors{model::short_conv(in[0], in[1], cu)}; });
  // What a depthwise convolution costs in torch itself, for comparison; not part of the model.
  add("torch conv1d q", 0, {activation(c.k_width()), weight({c.k_width(), 1, c.conv_size})},
      [&](const Tensors& in) {
        const at::Tensor rows = in[0].t().unsqueeze(0);
        const at::Tensor taps = in[1].to(rows.scalar_type());
        const at::Tensor z =
            at::conv1d(rows, taps, {}, at::IntArrayRef{1}, at::IntArrayRef{c.conv_size - 1},
                       at::IntArrayRef{1}, c.k_width());
        return Tensors{at::silu(z.narrow(2, 0, tokens).squeeze(0).t())};
      });
  add("linear decay", layers,
      {activation(c.gate_low_rank), weight({c.decay_width(), c.gate_low_rank})},
      [](const Tensors& in) { return Tensors{model::linear_one(in[0], in[1])}; });
  add("chunk_kda", layers,
      {activation(c.k_width()), activation(c.k_width()), activation(c.v_width()),
       activation(c.decay_width()), activation(c.num_v_heads), weight({c.num_v_heads}),
       weight({c.decay_width()})},
      [&](const Tensors& in) {
        binding::KdaArguments args;
        args.q = in[0].view({1, tokens, c.num_heads, c.head_k_dim});
        args.k = in[1].view({1, tokens, c.num_heads, c.head_k_dim});
        args.v = in[2].view({1, tokens, c.num_v_heads, c.head_v_dim});
        args.g = in[3].view({1, tokens, c.num_v_heads, c.head_k_dim});
        args.beta = in[4].unsqueeze(0);
        args.a_log = in[5];
        args.dt_bias = in[6];
        args.lower_bound = c.gate_lower_bound;
        args.raw_gate = args.beta_is_logit = args.qk_l2norm = true;
        args.chunk = c.chunk;
        args.cu_seqlens = cu;
        return Tensors{std::get<0>(binding::chunk_kda(args))};
      });
  add("gated_norm", layers,
      {activation(c.v_width()), activation(c.v_width()), weight({c.head_v_dim})},
      [&](const Tensors& in) {
        return Tensors{model::gated_norm(in[0].view({tokens, c.num_v_heads, c.head_v_dim}), in[1],
                                         in[2], c.norm_eps)};
      });
  add("linear output", layers, {activation(c.v_width()), weight({d, c.v_width()})},
      [](const Tensors& in) { return Tensors{model::linear_one(in[0], in[1])}; });
  add("add_rms_norm", 2 * layers + 1, {activation(d).to(at::kFloat), activation(d), weight({d})},
      [&](const Tensors& in) {
        const auto out = model::add_rms_norm(in[0], in[1], in[2], c.norm_eps, compute);
        return Tensors{out.sum, out.normed};
      });
  add("linear gate+up", layers, {activation(d), weight({2 * c.intermediate_size, d})},
      [](const Tensors& in) { return Tensors{model::linear_one(in[0], in[1])}; });
  add("swiglu", layers, {activation(c.intermediate_size), activation(c.intermediate_size)},
      [](const Tensors& in) { return Tensors{model::swiglu(in[0], in[1])}; });
  add("linear down", layers, {activation(c.intermediate_size), weight({d, c.intermediate_size})},
      [](const Tensors& in) { return Tensors{model::linear_one(in[0], in[1])}; });
  const at::Tensor ids = at::randint(c.vocab_size, {tokens}, at::TensorOptions().dtype(at::kLong));
  add("cross_entropy", 1, {activation(d), weight({c.vocab_size, d})},
      [&](const Tensors& in) { return Tensors{model::cross_entropy_sum(in[0], in[1], ids)}; });
  add("embedding", 1, {weight({c.vocab_size, d})},
      [&](const Tensors& in) { return Tensors{at::embedding(in[0], ids)}; });
  return stages;
}

}  // namespace kda::bench
