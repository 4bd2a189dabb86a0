// Gated MLA against loops written from the formulas, its two forms against each other.
#include "model/gated_mla.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <map>

#include "model/model_test_support.h"
#include "model/packed_attention.h"

namespace kda::test {
namespace {

using model::GatedMla;
using model::MlaConfig;
using model::Sequences;

constexpr std::int64_t kHidden = 14;

struct Form {
  const char* name;
  MlaConfig config;
};

const Form kForms[] = {
    {"DirectQueryNoSharedKey", {3, 0, 12, 8, 0, 8, true, 1e-6}},
    {"LowRankQuerySharedKey", {2, 6, 10, 8, 4, 6, true, 1e-5}},
    {"KimiLinear", {3, 0, 12, 6, 4, 14, false, 1e-6}},
};

model::LayerOptions layer_options(DType activation) {
  model::LayerOptions options;
  options.activation = activation;
  options.tensors = at::TensorOptions().dtype(activation == DType::kF64 ? at::kDouble : at::kFloat);
  return options;
}

std::map<std::string, at::Tensor> filled(const GatedMla& layer, std::uint64_t seed) {
  std::vector<model::Parameter> parameters;
  layer.collect("", parameters);
  std::map<std::string, at::Tensor> by_name;
  for (const model::Parameter& p : parameters) {
    at::Tensor values = p.tensor.detach();
    const at::Tensor noise = random_tensor(values.sizes(), seed++, values.scalar_type());
    values.copy_(p.kind == model::ParameterKind::kNorm ? noise * 0.3 + 1.0 : noise * 0.6);
    by_name[p.name] = p.tensor;
  }
  return by_name;
}

using Row = std::vector<double>;

Row row_of(const at::Tensor& tensor) {
  const at::Tensor host = tensor.detach().to(at::kDouble).contiguous();
  return {host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel()};
}

Row times(const at::Tensor& weight, const Row& x) {
  const Row m = row_of(weight);
  Row y(m.size() / x.size());
  for (std::size_t o = 0; o < y.size(); ++o) {
    for (std::size_t i = 0; i < x.size(); ++i)
      y[o] += m[o * x.size() + i] * x[i];
  }
  return y;
}

Row normed(Row x, const at::Tensor& gain, double eps) {
  const Row g = row_of(gain);
  double squares = 0;
  for (const double value : x)
    squares += value * value;
  const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] *= rstd * g[i];
  return x;
}

// One document, token by token.
std::vector<Row> document(const MlaConfig& c, const std::map<std::string, at::Tensor>& w,
                          const std::vector<Row>& xs) {
  const auto H = static_cast<std::size_t>(c.num_heads);
  const auto n = static_cast<std::size_t>(c.qk_nope_head_dim);
  const auto r = static_cast<std::size_t>(c.qk_rope_head_dim);
  const auto v = static_cast<std::size_t>(c.v_head_dim);
  const auto rho = static_cast<std::size_t>(c.kv_lora_rank);
  std::vector<Row> keys_values, shared, outputs;
  for (const Row& x : xs) {
    const Row q = c.q_lora_rank > 0 ? times(w.at("q_b_proj.weight"),
                                            normed(times(w.at("q_a_proj.weight"), x),
                                                   w.at("q_a_layernorm.weight"), c.latent_norm_eps))
                                    : times(w.at("q_proj.weight"), x);
    const Row latent = times(w.at("kv_a_proj_with_mqa.weight"), x);
    const auto cut = latent.begin() + static_cast<std::ptrdiff_t>(rho);
    keys_values.push_back(
        times(w.at("kv_b_proj.weight"),
              normed({latent.begin(), cut}, w.at("kv_a_layernorm.weight"), c.latent_norm_eps)));
    shared.emplace_back(cut, latent.end());
    const Row gate = c.output_gate ? times(w.at("g_proj.weight"), x) : Row();
    Row o(H * v);
    for (std::size_t h = 0; h < H; ++h) {
      Row p;
      double total = 0;
      for (std::size_t j = 0; j < keys_values.size(); ++j) {
        double logit = 0;
        for (std::size_t i = 0; i < n; ++i)
          logit += q[h * (n + r) + i] * keys_values[j][h * (n + v) + i];
        for (std::size_t i = 0; i < r; ++i)
          logit += q[h * (n + r) + n + i] * shared[j][i];
        p.push_back(std::exp(logit / std::sqrt(static_cast<double>(n + r))));
        total += p.back();
      }
      for (std::size_t i = 0; i < v; ++i) {
        double sum = 0;
        for (std::size_t j = 0; j < p.size(); ++j)
          sum += p[j] / total * keys_values[j][h * (n + v) + n + i];
        o[h * v + i] = c.output_gate ? sum / (1.0 + std::exp(-gate[h * v + i])) : sum;
      }
    }
    outputs.push_back(times(w.at("o_proj.weight"), o));
  }
  return outputs;
}

TEST(GatedMla_Golden, EqualsTheLoops) {
  const std::vector<std::int64_t> cu{0, 1, 1, 20, 27};
  const at::Tensor x = random_tensor({27, kHidden}, 5);
  for (const Form& form : kForms) {
    const GatedMla layer(form.config, kHidden, layer_options(DType::kF64));
    const auto weights = filled(layer, 100);
    const c10::NoGradGuard no_grad;
    const at::Tensor y = layer.forward(x, Sequences(index(cu), c10::kCPU));
    double worst = 0;
    for (std::size_t n = 0; n + 1 < cu.size(); ++n) {
      std::vector<Row> xs;
      for (std::int64_t t = cu[n]; t < cu[n + 1]; ++t)
        xs.push_back(row_of(x[t]));
      const std::vector<Row> expected = document(form.config, weights, xs);
      for (std::size_t t = 0; t < expected.size(); ++t) {
        const Row got = row_of(y[cu[n] + static_cast<std::int64_t>(t)]);
        for (std::size_t i = 0; i < got.size(); ++i)
          worst = std::max(worst, std::abs(got[i] - expected[t][i]));
      }
    }
    EXPECT_LT(worst, 1e-12) << form.name;
    EXPECT_GT(y.abs().max().item<double>(), 0.1) << form.name;
  }
}

// Forward and every gradient of both forms, relative to the largest element.
TEST(GatedMla_Forms, AbsorbedEqualsExpanded) {
  const Sequences sequences(index({0, 3, 40, 41}), c10::kCPU);
  const at::Tensor dy = random_tensor({41, kHidden}, 7);
  for (const Form& form : kForms) {
    const GatedMla layer(form.config, kHidden, layer_options(DType::kF64));
    auto weights = filled(layer, 200);
    std::vector<std::map<std::string, at::Tensor>> results;
    for (const bool absorbed : {false, true}) {
      at::Tensor x = random_tensor({41, kHidden}, 6);
      x.set_requires_grad(true);
      for (auto& [name, weight] : weights)
        weight.mutable_grad().reset();
      const at::Tensor y =
          absorbed ? layer.forward_absorbed(x, sequences) : layer.forward(x, sequences);
      torch::autograd::backward({y}, {dy});
      std::map<std::string, at::Tensor> found{{"y", y.detach()}, {"dx", x.grad()}};
      for (const auto& [name, weight] : weights)
        found[name] = weight.grad().clone();
      results.push_back(found);
    }
    for (const auto& [name, expanded] : results[0]) {
      const double largest = expanded.abs().max().item<double>();
      EXPECT_GT(largest, 1e-4) << form.name << " " << name;
      EXPECT_LE(max_difference(expanded, results[1].at(name)), 1e-10 * largest)
          << form.name << " " << name;
    }
  }
}

TEST(GatedMla_Gradient, CentralDifferences) {
  const Sequences sequences(index({0, 5, 7}), c10::kCPU);
  for (const Form& form : kForms) {
    const GatedMla layer(form.config, kHidden, layer_options(DType::kF64));
    auto weights = filled(layer, 300);
    at::Tensor x = random_tensor({7, kHidden}, 8);
    x.set_requires_grad(true);
    const at::Tensor dy = random_tensor({7, kHidden}, 9);
    torch::autograd::backward({layer.forward(x, sequences)}, {dy});
    weights["x"] = x;
    const c10::NoGradGuard no_grad;
    const auto loss = [&] { return (layer.forward(x, sequences) * dy).sum().item<double>(); };
    for (const auto& [name, tensor] : weights) {
      const at::Tensor flat = tensor.detach().view({-1});
      const at::Tensor gradient = tensor.grad().reshape({-1});
      for (std::int64_t i = 0; i < flat.numel(); i += 1 + flat.numel() / 7) {
        double* value = flat.mutable_data_ptr<double>() + i;
        const double saved = *value;
        *value = saved + 1e-6;
        const double above = loss();
        *value = saved - 1e-6;
        const double below = loss();
        *value = saved;
        const double numeric = (above - below) / 2e-6;
        EXPECT_NEAR(gradient[i].item<double>(), numeric, 1e-7 * std::max(1.0, std::abs(numeric)))
            << form.name << " " << name << " " << i;
      }
    }
  }
}

TEST(GatedMla_Cache, AnyPiecesEqualOneRun) {
  for (const Form& form : kForms) {
    for (const DType compute : {DType::kF64, DType::kF32}) {
      const GatedMla layer(form.config, kHidden, layer_options(compute));
      filled(layer, 400);
      const c10::NoGradGuard no_grad;
      const auto type = compute == DType::kF64 ? at::kDouble : at::kFloat;
      const at::Tensor x = random_tensor({140, kHidden}, 10, type);
      const at::Tensor full = layer.forward(x, Sequences(index({0, 140}), c10::kCPU));
      for (const std::int64_t piece : {1, 3, 64, 65, 139}) {
        model::LayerState state = layer.new_state(1);
        for (std::int64_t begin = 0; begin < 140; begin += piece) {
          const std::int64_t count = std::min<std::int64_t>(piece, 140 - begin);
          const std::vector<std::int64_t> past{begin};
          const at::Tensor y =
              layer.forward_cached(x.narrow(0, begin, count),
                                   Sequences(index({0, count}), c10::kCPU), {&state, {}, {}, past});
          EXPECT_LT(max_difference(y, full.narrow(0, begin, count)),
                    compute == DType::kF64 ? 1e-12 : 2e-5)
              << form.name << " " << piece << " at " << begin;
        }
        EXPECT_EQ(state.latent.size(2), form.config.cache_width());
        EXPECT_LT(state.latent.size(1), 2 * 140);
      }
    }
  }
}

TEST(PackedAttention_Host, EqualsTheComposedForm) {
  const Sequences sequences(index({0, 0, 33, 34, 100}), c10::kCPU);
  struct Case {
    std::int64_t k, v;
    at::ScalarType type;
    double tolerance;
  };
  for (const Case& c : {Case{8, 8, at::kDouble, 1e-13}, Case{12, 5, at::kDouble, 1e-13},
                        Case{4, 16, at::kFloat, 1e-5}, Case{16, 16, at::kBFloat16, 2e-2}}) {
    std::vector<std::vector<at::Tensor>> results;
    for (const bool composed : {false, true}) {
      std::vector<at::Tensor> inputs{random_tensor({100, 3, c.k}, 20, c.type),
                                     random_tensor({100, 3, c.k}, 21, c.type),
                                     random_tensor({100, 3, c.v}, 22, c.type)};
      for (at::Tensor& input : inputs)
        input.set_requires_grad(true);
      const at::Tensor o =
          composed
              ? model::packed_attention_composed(inputs[0], inputs[1], inputs[2], sequences, 0.7)
              : model::packed_attention(inputs[0], inputs[1], inputs[2], sequences, 0.7);
      EXPECT_EQ(o.scalar_type(), c.type);
      torch::autograd::backward({o}, {random_tensor(o.sizes(), 23, c.type)});
      results.push_back({o.detach(), inputs[0].grad(), inputs[1].grad(), inputs[2].grad()});
    }
    for (std::size_t i = 0; i < 4; ++i)
      EXPECT_LT(max_difference(results[0][i], results[1][i]), c.tolerance) << c.k << " " << i;
  }
}

TEST(PackedAttention_LargestLogits, EqualTheDirectMaximum) {
  const at::Tensor q = random_tensor({600, 2, 4}, 30);
  const at::Tensor k = random_tensor({600, 2, 4}, 31);
  const std::vector<std::int64_t> cu{0, 300, 600};
  const at::Tensor largest = model::largest_logits(q, k, Sequences(index(cu), c10::kCPU), 0.5);
  std::vector<double> expected(2, -1e9);
  for (std::size_t n = 0; n < 2; ++n) {
    for (std::int64_t h = 0; h < 2; ++h) {
      const at::Tensor all =
          q.select(1, h).narrow(0, cu[n], 300).matmul(k.select(1, h).narrow(0, cu[n], 300).t());
      const double value =
          (all.tril() - at::Tensor(all.new_ones({300, 300})).triu(1) * 1e9).max().item<double>() *
          0.5;
      auto& slot = expected[static_cast<std::size_t>(h)];
      slot = std::max(slot, value);
    }
  }
  EXPECT_NEAR(largest[0].item<double>(), expected[0], 1e-12);
  EXPECT_NEAR(largest[1].item<double>(), expected[1], 1e-12);
}

}  // namespace
}  // namespace kda::test
