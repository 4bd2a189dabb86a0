// The attention layer against a token-by-token computation in f64, written here from the formulas
// with plain loops.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "model/init.h"
#include "model/kda_attention.h"
#include "model/model_test_support.h"

namespace kda::test {
namespace {

using Vector = std::vector<double>;

// A matrix or tensor as numbers, row-major.
Vector numbers(const at::Tensor& tensor) {
  const at::Tensor host = tensor.detach().to(at::kDouble).contiguous();
  const double* p = host.const_data_ptr<double>();
  return {p, p + host.numel()};
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double softplus(double x) { return x > 30 ? x : std::log1p(std::exp(x)); }

struct Layer {
  model::KDAConfig c;
  std::map<std::string, Vector> w;

  Vector product(const std::string& name, const Vector& x) const {
    const Vector& m = w.at(name + ".weight");
    Vector y(m.size() / x.size());
    for (std::size_t o = 0; o < y.size(); ++o) {
      for (std::size_t i = 0; i < x.size(); ++i)
        y[o] += m[o * x.size() + i] * x[i];
    }
    return y;
  }

  // rows: the projections of all tokens of the document up to now.
  Vector conv(const std::string& name, const std::vector<Vector>& rows) const {
    const Vector& taps = w.at(name + ".weight");
    const auto width = static_cast<std::size_t>(c.conv_size);
    Vector y(rows.back().size());
    for (std::size_t ch = 0; ch < y.size(); ++ch) {
      double z = 0;
      for (std::size_t j = 0; j < width; ++j) {
        const std::size_t back = width - 1 - j;
        if (back < rows.size()) z += taps[ch * width + j] * rows[rows.size() - 1 - back][ch];
      }
      y[ch] = z * sigmoid(z);
    }
    return y;
  }

  std::vector<Vector> document(const std::vector<Vector>& xs) const {
    const auto H = static_cast<std::size_t>(c.num_heads);
    const auto HV = static_cast<std::size_t>(c.num_v_heads);
    const auto K = static_cast<std::size_t>(c.head_k_dim);
    const auto V = static_cast<std::size_t>(c.head_v_dim);
    std::vector<Vector> S(HV, Vector(K * V, 0.0));
    std::vector<Vector> qs, ks, vs, outputs;
    for (const Vector& x : xs) {
      qs.push_back(product("q_proj", x));
      ks.push_back(product("k_proj", x));
      vs.push_back(product("v_proj", x));
      Vector q = conv("q_conv1d", qs);
      Vector k = conv("k_conv1d", ks);
      const Vector v = conv("v_conv1d", vs);
      for (Vector* row : {&q, &k}) {
        for (std::size_t h = 0; h < H; ++h) {
          double squares = 0;
          for (std::size_t i = 0; i < K; ++i)
            squares += (*row)[h * K + i] * (*row)[h * K + i];
          for (std::size_t i = 0; i < K; ++i)
            (*row)[h * K + i] /= std::sqrt(squares + 1e-6);
        }
      }
      const Vector z = product("f_b_proj", product("f_a_proj", x));
      const Vector beta_logit = product("b_proj", x);
      const Vector gate =
          c.full_rank_gate ? product("g_proj", x) : product("g_b_proj", product("g_a_proj", x));
      Vector y(HV * V);
      for (std::size_t hv = 0; hv < HV; ++hv) {
        const std::size_t h = hv / (HV / H);
        const double a = std::exp(w.at("A_log")[hv]);
        const double beta = (c.allow_neg_eigval ? 2.0 : 1.0) * sigmoid(beta_logit[hv]);
        for (std::size_t i = 0; i < K; ++i) {
          const double shifted = z[hv * K + i] + w.at("dt_bias")[hv * K + i];
          const double g = c.gate_lower_bound ? *c.gate_lower_bound * sigmoid(a * shifted)
                                              : -a * softplus(shifted);
          for (std::size_t j = 0; j < V; ++j)
            S[hv][i * V + j] *= std::exp(g);
        }
        Vector r(V), o(V);
        for (std::size_t j = 0; j < V; ++j) {
          r[j] = v[hv * V + j];
          for (std::size_t i = 0; i < K; ++i)
            r[j] -= S[hv][i * V + j] * k[h * K + i];
        }
        for (std::size_t j = 0; j < V; ++j) {
          for (std::size_t i = 0; i < K; ++i) {
            S[hv][i * V + j] += beta * k[h * K + i] * r[j];
            o[j] += S[hv][i * V + j] * q[h * K + i] / std::sqrt(static_cast<double>(K));
          }
        }
        double squares = 0;
        for (const double value : o)
          squares += value * value;
        const double rms = std::sqrt(squares / static_cast<double>(V) + c.norm_eps);
        for (std::size_t j = 0; j < V; ++j) {
          y[hv * V + j] = o[j] / rms * w.at("o_norm.weight")[j] * sigmoid(gate[hv * V + j]);
        }
      }
      outputs.push_back(product("o_proj", y));
    }
    return outputs;
  }
};

struct Case {
  const char* name;
  bool full_rank;
  bool safe;
  bool negative;
};

class Attention_Golden : public testing::TestWithParam<Case> {};

TEST_P(Attention_Golden, EqualsTheRecurrence) {
  model::KDAConfig c = small_config();
  c.full_rank_gate = GetParam().full_rank;
  if (!GetParam().safe) c.gate_lower_bound.reset();
  c.allow_neg_eigval = GetParam().negative;

  model::LayerOptions options;
  options.activation = DType::kF64;
  options.tensors = at::TensorOptions().dtype(at::kDouble);
  const model::KdaAttention layer(c, options);
  std::vector<model::Parameter> parameters;
  layer.collect("", parameters);
  Layer reference{c, {}};
  std::uint64_t seed = 60;
  for (const model::Parameter& p : parameters) {
    model::initialise(p, c, seed);
    at::Tensor values = p.tensor.detach();
    const at::Tensor noise = random_tensor(values.sizes(), ++seed);
    if (p.kind == model::ParameterKind::kMatrix) values.copy_(noise * 0.5);
    if (p.kind == model::ParameterKind::kNorm) values.copy_(noise * 0.5 + 1.0);
    if (p.kind == model::ParameterKind::kGate) values.add_(noise * 0.7);
    reference.w[p.name] = numbers(values);
  }

  // Three documents: shorter than the convolution, across two chunks, a single token.
  const std::vector<std::int64_t> cu{0, 2, 75, 76};
  const at::Tensor x = random_tensor({76, c.hidden_size}, 61);
  const c10::NoGradGuard no_grad;
  const at::Tensor y = layer.forward(x, model::Sequences(index(cu), c10::kCPU));
  const Vector got = numbers(y);
  const Vector rows = numbers(x);
  const auto d = static_cast<std::size_t>(c.hidden_size);
  double worst = 0;
  double largest = 0;
  for (std::size_t n = 0; n + 1 < cu.size(); ++n) {
    std::vector<Vector> xs;
    for (auto t = static_cast<std::size_t>(cu[n]); t < static_cast<std::size_t>(cu[n + 1]); ++t) {
      xs.emplace_back(rows.begin() + static_cast<std::ptrdiff_t>(t * d),
                      rows.begin() + static_cast<std::ptrdiff_t>((t + 1) * d));
    }
    const std::vector<Vector> expected = reference.document(xs);
    for (std::size_t t = 0; t < xs.size(); ++t) {
      for (std::size_t i = 0; i < d; ++i) {
        const double value = got[(static_cast<std::size_t>(cu[n]) + t) * d + i];
        worst = std::max(worst, std::abs(value - expected[t][i]));
        largest = std::max(largest, std::abs(value));
      }
    }
  }
  EXPECT_LT(worst, 1e-11);
  EXPECT_GT(largest, 0.1);
}

INSTANTIATE_TEST_SUITE_P(Gates, Attention_Golden,
                         testing::Values(Case{"K3", true, true, false},
                                         Case{"KimiLinear", false, false, false},
                                         Case{"NegativeEigenvalues", true, true, true}),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(Attention_Parameters, SharedInputsAreNeighbours) {
  // One product serves q, k, v, gate, decay and beta only while they lie in one block.
  model::LayerOptions options;
  options.tensors = at::TensorOptions().dtype(at::kFloat);
  const model::KdaAttention layer(small_config(), options);
  std::vector<model::Parameter> parameters;
  layer.collect("", parameters);
  std::map<std::string, at::Tensor> by_name;
  for (const model::Parameter& p : parameters)
    by_name[p.name] = p.tensor;
  const std::vector<at::Tensor> parts = {by_name["q_proj.weight"],   by_name["k_proj.weight"],
                                         by_name["v_proj.weight"],   by_name["g_proj.weight"],
                                         by_name["f_a_proj.weight"], by_name["b_proj.weight"]};
  EXPECT_EQ(model::joined(parts, 0).const_data_ptr(), parts[0].const_data_ptr());
}

}  // namespace
}  // namespace kda::test
