#include "support/cases.h"

#include <algorithm>

#include "support/random.h"

namespace kda::test {
namespace {

HostTensor normals(Random* random, std::vector<std::int64_t> shape, double amplitude = 1.0) {
  HostTensor out(std::move(shape));
  for (double& x : out.data)
    x = amplitude * random->normal();
  return out;
}

// Scales every last-dimension row to length 1.
void normalise_rows(HostTensor* x) {
  const auto n = static_cast<std::size_t>(x->shape.back());
  for (std::size_t row = 0; row < x->data.size(); row += n) {
    double sum = 0.0;
    for (std::size_t i = 0; i < n; ++i)
      sum += x->data[row + i] * x->data[row + i];
    for (std::size_t i = 0; i < n; ++i)
      x->data[row + i] /= std::sqrt(sum);
  }
}

HostTensor make_keys(const Case& c, Random* random) {
  const std::vector<std::int64_t> shape = {c.B, c.T, c.H, c.K};
  const double per_channel = 1.0 / std::sqrt(static_cast<double>(c.K));
  switch (c.keys) {
    case Keys::kUnnormalised:
      return normals(random, shape, std::sqrt(2.0) * per_channel);
    case Keys::kNormal:
      return normals(random, shape);
    case Keys::kTiny:
      return normals(random, shape, 1e-4);
    case Keys::kIdentical: {
      HostTensor one = normals(random, {1, c.K});
      normalise_rows(&one);
      HostTensor k = normals(random, shape, 0.01 * per_channel);
      for (std::size_t i = 0; i < k.data.size(); ++i) {
        k.data[i] += one.data[i % static_cast<std::size_t>(c.K)];
      }
      normalise_rows(&k);
      return k;
    }
    case Keys::kUnit:
    case Keys::kSomeZero: {
      HostTensor k = normals(random, shape);
      normalise_rows(&k);
      if (c.keys == Keys::kUnit) return k;
      const auto n = static_cast<std::size_t>(c.K);
      for (std::size_t row = 0; row < k.data.size(); row += n) {
        if (random->uniform() < 0.2)
          std::fill_n(k.data.begin() + static_cast<std::ptrdiff_t>(row), n, 0.0);
      }
      return k;
    }
  }
  return {};
}

double log_sigmoid(double x) { return -std::log1p(std::exp(-x)); }

HostTensor make_decays(const Case& c, Random* random) {
  HostTensor g({c.B, c.T, c.HV, c.K});
  if (c.raw_gate()) {
    for (double& x : g.data) {
      x = random->normal();
      if (c.decays == Decays::kBound) x = x > 0 ? 30.0 : -30.0;
      if (c.decays == Decays::kZero) x = -12.0;
    }
    return g;
  }
  constexpr double kMixedValues[] = {0.0, -1e-3, -1.0, -5.0, -30.0, -1000.0};
  const auto row = static_cast<std::size_t>(c.HV * c.K);
  bool reset = false;
  for (std::size_t i = 0; i < g.data.size(); ++i) {
    double& x = g.data[i];
    switch (c.decays) {
      case Decays::kMild:
        x = log_sigmoid(random->normal());
        break;
      case Decays::kZero:
        x = 0.0;
        break;
      case Decays::kSlow:
        x = -1e-3;
        break;
      case Decays::kBound:
        x = -5.0;
        break;
      case Decays::kStrong:
        x = -3.0 + 0.1 * random->normal();
        break;
      case Decays::kResets:
        if (i % row == 0) reset = random->uniform() < 0.1;
        x = log_sigmoid(random->normal()) / 16.0;
        if (reset) x = -1000.0;
        break;
      case Decays::kAlternating:
        x = i % 2 == 0 ? -1e-4 : -5.0;
        break;
      case Decays::kAllResets:
        x = -1000.0;
        break;
      case Decays::kMixed:
        x = kMixedValues[random->next() % std::size(kMixedValues)];
        break;
      case Decays::kMemory:
        x = -8e-5;
        break;
    }
  }
  return g;
}

HostTensor make_betas(const Case& c, Random* random) {
  HostTensor beta({c.B, c.T, c.HV});
  for (double& x : beta.data) {
    switch (c.betas) {
      case Betas::kUniform:
        x = random->uniform();
        break;
      case Betas::kZero:
        x = 0.0;
        break;
      case Betas::kNearOne:
        x = 0.999;
        break;
      case Betas::kTwo:
        x = 2.0;
        break;
      case Betas::kLogit:
      case Betas::kLogitDoubled:
        x = random->normal();
        break;
      case Betas::kLogitHigh:
        x = 8.0;
        break;
    }
  }
  return beta;
}

}  // namespace

CaseDTypes dtypes_of(const Case& c, DType io) {
  const DType accum = io == DType::kF64 ? DType::kF64 : DType::kF32;
  const DType gate_beta = c.narrow_gate ? io : accum;
  return {io, gate_beta, accum, c.wide_gradients ? accum : io,
          c.wide_gradients ? accum : gate_beta};
}

CaseData make_data(const Case& c, DType io) {
  const CaseDTypes dtype = dtypes_of(c, io);
  Random random(c.seed);
  CaseData data;
  data.q = normals(&random, {c.B, c.T, c.H, c.K});
  normalise_rows(&data.q);
  data.k = make_keys(c, &random);
  if (c.keys == Keys::kTiny) {
    for (double& x : data.q.data)
      x *= 1e-4;
  }
  data.v = normals(&random, {c.B, c.T, c.HV, c.V});
  data.g = make_decays(c, &random);
  data.beta = make_betas(c, &random);
  if (c.has_a_log()) {
    data.a_log = HostTensor({c.HV});
    for (double& x : data.a_log.data)
      x = random.uniform(-0.5, 1.0);
  }
  if (c.has_dt_bias()) data.dt_bias = normals(&random, {c.HV, c.K});
  if (c.initial_state) data.state0 = normals(&random, {c.N(), c.HV, c.K, c.V});
  if (c.d_o) data.d_o = normals(&random, {c.B, c.T, c.HV, c.V});
  if (c.d_final_state) data.d_final_state = normals(&random, {c.N(), c.HV, c.K, c.V});

  for (HostTensor* x : {&data.q, &data.k, &data.v, &data.d_o})
    *x = rounded(std::move(*x), dtype.io);
  for (HostTensor* x : {&data.g, &data.beta})
    *x = rounded(std::move(*x), dtype.gate_beta);
  for (HostTensor* x : {&data.a_log, &data.dt_bias, &data.state0, &data.d_final_state}) {
    *x = rounded(std::move(*x), dtype.params);
  }
  return data;
}

}  // namespace kda::test
