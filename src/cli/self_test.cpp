#include "cli/self_test.h"

#include <algorithm>
#include <cmath>

#include "kda/error.h"
#include "kda/ops/recurrent.h"

namespace kda::cli {
namespace {

/// Values in [-1, 1), the same on every machine (a 64-bit linear congruential generator).
std::vector<float> random_values(std::int64_t count, std::uint64_t seed, float size) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::uint64_t state = seed * 0x9E3779B97F4A7C15ull + 1;
  for (float& value : values) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    value = size * (static_cast<float>(state >> 40) * 0x1.0p-23f - 1.0f);
  }
  return values;
}

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(d <= difference)) difference = d;  // also takes NaN
    size = std::max(size, std::abs(static_cast<double>(b[i])));
  }
  return difference / std::max(size, 1e-30);
}

}  // namespace

OperatorCase::OperatorCase(const Shape& shape) : shape_(shape) {
  const auto [B, T, H, K, V] = shape;
  q_ = random_values(B * T * H * K, 1, 1.0f);
  k_ = random_values(B * T * H * K, 2, 1.0f);
  v_ = random_values(B * T * H * V, 3, 1.0f);
  g_ = random_values(B * T * H * K, 4, 1.0f);
  beta_ = random_values(B * T * H, 5, 2.0f);
  a_log_ = random_values(H, 6, 0.2f);
  dt_bias_ = random_values(H * K, 7, 2.0f);
  d_o_ = random_values(B * T * H * V, 8, 1.0f);
  o_.resize(v_.size());
  h_.resize(
      static_cast<std::size_t>(B * ((T + kStateBlockTokens - 1) / kStateBlockTokens) * H * K * V));
  final_state_.resize(static_cast<std::size_t>(B * H * K * V));
  for (std::int64_t row = 0; row < B; ++row)
    slots_.push_back(row);
  for (const auto* like : {&q_, &k_, &v_, &g_, &beta_, &a_log_, &dt_bias_}) {
    gradients_.emplace_back(like->size());
  }
}

OperatorInputs OperatorCase::inputs() const {
  const auto [B, T, H, K, V] = shape_;
  OperatorInputs in;
  in.q = view_of(q_.data(), {B, T, H, K});
  in.k = view_of(k_.data(), {B, T, H, K});
  in.v = view_of(v_.data(), {B, T, H, V});
  in.g_raw = view_of(g_.data(), {B, T, H, K});
  in.gate.a_log = view_of(a_log_.data(), {H});
  in.gate.dt_bias = view_of(dt_bias_.data(), {H, K});
  in.gate.lower_bound_ln = -5.0;
  in.beta_logit = view_of(beta_.data(), {B, T, H});
  in.qk_l2norm = true;
  return in;
}

void OperatorCase::forward(Backend backend, bool keep_states) {
  const auto [B, T, H, K, V] = shape_;
  ChunkForwardParams params;
  params.in = inputs();
  params.o = view_of(o_.data(), {B, T, H, V});
  if (keep_states) params.h_kv = view_of(h_.data(), {num_state_blocks(params.in), H, K, V});
  Context context;
  context.backend = backend;
  chunk_forward(params, context);
}

void OperatorCase::backward(Backend backend, bool use_states) {
  const auto [B, T, H, K, V] = shape_;
  ChunkBackwardParams params;
  params.in = inputs();
  params.d_o = view_of(static_cast<const float*>(d_o_.data()), {B, T, H, V});
  if (use_states) {
    params.h_kv =
        view_of(static_cast<const float*>(h_.data()), {num_state_blocks(params.in), H, K, V});
  }
  params.dq = view_of(gradients_[0].data(), {B, T, H, K});
  params.dk = view_of(gradients_[1].data(), {B, T, H, K});
  params.dv = view_of(gradients_[2].data(), {B, T, H, V});
  params.dg = view_of(gradients_[3].data(), {B, T, H, K});
  params.dbeta = view_of(gradients_[4].data(), {B, T, H});
  params.da_log = view_of(gradients_[5].data(), {H});
  params.d_dt_bias = view_of(gradients_[6].data(), {H, K});
  Context context;
  context.backend = backend;
  chunk_backward(params, context);
}

void OperatorCase::decode(Backend backend) {
  const auto [B, T, H, K, V] = shape_;
  pool_.resize(static_cast<std::size_t>(B * H * K * V));
  RecurrentForwardParams params;
  params.in = inputs();
  params.pool.pool_kv = view_of(pool_.data(), {B, H, K, V});
  params.pool.slots = view_of(static_cast<const std::int64_t*>(slots_.data()), {B});
  params.o = view_of(o_.data(), {B, T, H, V});
  Context context;
  context.backend = backend;
  recurrent_forward(params, context);
}

SelfTestResult self_test(Backend backend) {
  // Both are fp32 with different orders of summation over at most 64 x 32 terms.
  constexpr double kTolerance = 1e-4;
  const OperatorCase::Shape shape{2, 131, 2, 32, 32};
  SelfTestResult result;
  OperatorCase expected(shape);
  OperatorCase given(shape);
  try {
    given.forward(backend, true);
    given.backward(backend, true);
  } catch (const Error& error) {
    result.skipped = error.what();
    return result;
  }
  expected.forward(Backend::kRef, false);
  expected.backward(Backend::kRef, false);
  result.ran = true;
  result.output_error = relative_difference(given.output(), expected.output());
  for (std::size_t i = 0; i < given.gradients().size(); ++i) {
    result.gradient_error = std::max(
        result.gradient_error, relative_difference(given.gradients()[i], expected.gradients()[i]));
  }
  result.passed = result.output_error < kTolerance && result.gradient_error < kTolerance;
  return result;
}

}  // namespace kda::cli
