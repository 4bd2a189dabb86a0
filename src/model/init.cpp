#include "model/init.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

#include "kda/parallel.h"
#include "model/philox.h"

namespace kda::model {
namespace {

// FNV-1a: the stream of a parameter is its name, so a new layer moves no other layer's numbers.
std::uint64_t stream_of(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : name)
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash;
}

// f(u) for one uniform per element, two elements per counter.
template <class F>
void fill_uniform(double* out, std::int64_t n, std::uint64_t seed, std::uint64_t stream, F&& f) {
  const std::int64_t pairs = (n + 1) / 2;
#pragma omp parallel for schedule(static) num_threads(num_threads()) if (n > 4096)
  for (std::int64_t p = 0; p < pairs; ++p) {
    const auto u = philox_uniforms(seed, stream, static_cast<std::uint64_t>(p));
    out[2 * p] = f(u[0]);
    if (2 * p + 1 < n) out[2 * p + 1] = f(u[1]);
  }
}

// Box and Muller's pairs.
void fill_normal(double* out, std::int64_t n, std::uint64_t seed, std::uint64_t stream,
                 double deviation) {
  const std::int64_t pairs = (n + 1) / 2;
#pragma omp parallel for schedule(static) num_threads(num_threads()) if (n > 4096)
  for (std::int64_t p = 0; p < pairs; ++p) {
    const auto u = philox_uniforms(seed, stream, static_cast<std::uint64_t>(p));
    const double radius = deviation * std::sqrt(-2.0 * std::log(1.0 - u[0]));
    const double angle = 2.0 * std::numbers::pi * u[1];
    out[2 * p] = radius * std::cos(angle);
    if (2 * p + 1 < n) out[2 * p + 1] = radius * std::sin(angle);
  }
}

double inverse_softplus_of_time_step(double u) {
  constexpr double kMin = 0.001;
  constexpr double kMax = 0.1;
  constexpr double kFloor = 1e-4;
  const double delta =
      std::max(std::exp(u * (std::log(kMax) - std::log(kMin)) + std::log(kMin)), kFloor);
  return delta + std::log(-std::expm1(-delta));
}

}  // namespace

void initialise(const Parameter& parameter, const KDAConfig& config, std::uint64_t seed) {
  const c10::NoGradGuard no_grad;
  at::Tensor target = parameter.tensor;
  const std::uint64_t stream = stream_of(parameter.name);
  const at::Tensor values = at::empty(target.sizes(), at::TensorOptions().dtype(at::kDouble));
  double* out = values.mutable_data_ptr<double>();
  const std::int64_t n = values.numel();
  switch (parameter.kind) {
    case ParameterKind::kMatrix:
    case ParameterKind::kEmbedding:
    case ParameterKind::kHead:
    case ParameterKind::kExperts:
      fill_normal(out, n, seed, stream, config.initializer_range);
      break;
    case ParameterKind::kNorm:
      std::fill(out, out + n, 1.0);
      break;
    case ParameterKind::kQuery:
    case ParameterKind::kRoutingBias:
      std::fill(out, out + n, 0.0);
      break;
    case ParameterKind::kConv: {
      const double bound = 1.0 / std::sqrt(static_cast<double>(config.conv_size));
      fill_uniform(out, n, seed, stream, [&](double u) { return (2.0 * u - 1.0) * bound; });
      break;
    }
    case ParameterKind::kGate:
      if (parameter.name.ends_with("dt_bias")) {
        fill_uniform(out, n, seed, stream, inverse_softplus_of_time_step);
      } else if (config.gate_lower_bound) {
        std::fill(out, out + n, 0.0);
      } else {
        fill_uniform(out, n, seed, stream, [](double u) { return std::log(1.0 + 15.0 * u); });
      }
      break;
  }
  if (parameter.kind == ParameterKind::kEmbedding && config.pad_id >= 0) {
    double* row = out + config.pad_id * target.size(1);
    std::fill(row, row + target.size(1), 0.0);
  }
  target.copy_(values);
}

}  // namespace kda::model
