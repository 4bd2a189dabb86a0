#include "train/optimizer.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "kda/error.h"
#include "kda/parallel.h"

// One function, compiled for several instruction sets and chosen at program start. No contraction
// to FMA happens under ISO C++ rules of GCC, so all clones give the same bits.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define KDA_SIMD_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define KDA_SIMD_CLONES
#endif

namespace kda::train {
namespace {

/// Elements per block: 4 streams x 32 KiB stay in the L2 cache, and a block is long enough for its
/// partial sum to be worth a double.
constexpr std::int64_t kBlockElements = 8192;

/// Scalars of one update, shared by all elements of a parameter.
struct UpdateScalars {
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float eps;
  float keep;            ///< 1 - lr * weight_decay
  float step_size;       ///< lr / (1 - beta1^t)
  float inv_sqrt_bias2;  ///< 1 / sqrt(1 - beta2^t)
  float gradient_scale;
};

KDA_SIMD_CLONES void update_block(float* __restrict p, const float* __restrict g,
                                  float* __restrict m, float* __restrict v, std::int64_t count,
                                  const UpdateScalars& s) {
  const UpdateScalars c = s;
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const float grad = g[i] * c.gradient_scale;
    const float mi = c.beta1 * m[i] + c.one_minus_beta1 * grad;
    const float vi = c.beta2 * v[i] + c.one_minus_beta2 * (grad * grad);
    m[i] = mi;
    v[i] = vi;
    p[i] = p[i] * c.keep - c.step_size * (mi / (std::sqrt(vi) * c.inv_sqrt_bias2 + c.eps));
  }
}

/// The same with a zero gradient.
KDA_SIMD_CLONES void decay_block(float* __restrict p, float* __restrict m, float* __restrict v,
                                 std::int64_t count, const UpdateScalars& s) {
  const UpdateScalars c = s;
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const float mi = c.beta1 * m[i];
    const float vi = c.beta2 * v[i];
    m[i] = mi;
    v[i] = vi;
    p[i] = p[i] * c.keep - c.step_size * (mi / (std::sqrt(vi) * c.inv_sqrt_bias2 + c.eps));
  }
}

/// Sum of squares in 8 fixed lanes, so that the compiler may vectorise without changing the result.
KDA_SIMD_CLONES double square_sum(const float* g, std::int64_t count) {
  constexpr std::int64_t kLanes = 8;
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) {
      const double x = static_cast<double>(g[i + l]);
      lanes[l] += x * x;
    }
  }
  for (std::int64_t l = 0; i < count; ++i, ++l) {
    lanes[l] += static_cast<double>(g[i]) * static_cast<double>(g[i]);
  }
  double sum = 0;
  for (double lane : lanes)
    sum += lane;
  return sum;
}

}  // namespace

struct AdamW::Block {
  std::size_t parameter;
  std::int64_t begin;
  std::int64_t count;
};

AdamW::AdamW(std::vector<model::Parameter> parameters, const AdamWOptions& options)
    : options_(options), parameters_(std::move(parameters)) {
  for (const model::Parameter& p : parameters_) {
    if (p.tensor.scalar_type() != at::kFloat || !p.tensor.is_contiguous() ||
        !p.tensor.device().is_cpu()) {
      throw Error(ErrorCode::kUnsupported,
                  "optimizer: " + p.name + ": expected a contiguous f32 tensor on the CPU, got " +
                      std::string(p.tensor.dtype().name()) + " on " + p.tensor.device().str());
    }
    exp_avg_.push_back(at::zeros_like(p.tensor.detach()));
    exp_avg_sq_.push_back(at::zeros_like(p.tensor.detach()));
  }
}

bool AdamW::decays(std::size_t parameter) const {
  return model::takes_weight_decay(parameters_[parameter].kind);
}

std::vector<AdamW::Block> AdamW::blocks() const {
  std::vector<Block> list;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::int64_t count = parameters_[i].tensor.numel();
    for (std::int64_t begin = 0; begin < count; begin += kBlockElements) {
      list.push_back({i, begin, std::min(kBlockElements, count - begin)});
    }
  }
  return list;
}

GradientStats AdamW::gradient_stats() const {
  const std::vector<Block> list = blocks();
  std::vector<at::Tensor> gradients;
  for (const model::Parameter& p : parameters_) {
    const at::Tensor& grad = p.tensor.grad();
    gradients.push_back(grad.defined() ? grad.contiguous() : at::Tensor());
  }
  std::vector<double> sums(list.size(), 0.0);
  const auto num_blocks = static_cast<std::int64_t>(list.size());
#pragma omp parallel for schedule(static) num_threads(kda::num_threads())
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    const Block& block = list[static_cast<std::size_t>(b)];
    const at::Tensor& grad = gradients[block.parameter];
    if (grad.defined()) {
      sums[static_cast<std::size_t>(b)] =
          square_sum(grad.const_data_ptr<float>() + block.begin, block.count);
    }
  }
  GradientStats stats;
  double total = 0;
  for (std::size_t b = 0; b < list.size(); ++b) {
    total += sums[b];
    // A finite f32 squared and summed 8192 times cannot overflow a double: not finite means that
    // the gradient itself is not.
    if (std::isfinite(sums[b])) continue;
    const std::string& name = parameters_[list[b].parameter].name;
    if (stats.nearest_nonfinite != name) ++stats.num_nonfinite;
    stats.nearest_nonfinite = name;
  }
  stats.norm = std::sqrt(total);
  return stats;
}

void AdamW::step(double lr, double gradient_scale) {
  ++updates_;
  const double bias1 = 1.0 - std::pow(options_.beta1, static_cast<double>(updates_));
  const double bias2 = 1.0 - std::pow(options_.beta2, static_cast<double>(updates_));
  UpdateScalars scalars{};
  scalars.beta1 = static_cast<float>(options_.beta1);
  scalars.one_minus_beta1 = static_cast<float>(1.0 - options_.beta1);
  scalars.beta2 = static_cast<float>(options_.beta2);
  scalars.one_minus_beta2 = static_cast<float>(1.0 - options_.beta2);
  scalars.eps = static_cast<float>(options_.eps);
  scalars.step_size = static_cast<float>(lr / bias1);
  scalars.inv_sqrt_bias2 = static_cast<float>(1.0 / std::sqrt(bias2));
  scalars.gradient_scale = static_cast<float>(gradient_scale);

  const std::vector<Block> list = blocks();
  std::vector<at::Tensor> gradients;
  std::vector<float> keep;
  std::vector<float*> p;
  std::vector<float*> m;
  std::vector<float*> v;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& grad = parameters_[i].tensor.grad();
    gradients.push_back(grad.defined() ? grad.contiguous() : at::Tensor());
    keep.push_back(static_cast<float>(1.0 - (decays(i) ? lr * options_.weight_decay : 0.0)));
    p.push_back(parameters_[i].tensor.mutable_data_ptr<float>());
    m.push_back(exp_avg_[i].mutable_data_ptr<float>());
    v.push_back(exp_avg_sq_[i].mutable_data_ptr<float>());
  }
  const auto num_blocks = static_cast<std::int64_t>(list.size());
#pragma omp parallel for schedule(static) num_threads(kda::num_threads())
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    const auto [i, begin, count] = list[static_cast<std::size_t>(b)];
    UpdateScalars s = scalars;
    s.keep = keep[i];
    if (gradients[i].defined()) {
      update_block(p[i] + begin, gradients[i].const_data_ptr<float>() + begin, m[i] + begin,
                   v[i] + begin, count, s);
    } else {
      decay_block(p[i] + begin, m[i] + begin, v[i] + begin, count, s);
    }
  }
}

void AdamW::clear_gradients() {
  for (const model::Parameter& p : parameters_)
    p.tensor.mutable_grad().reset();
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::state() const {
  std::vector<std::pair<std::string, at::Tensor>> list;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    list.emplace_back("exp_avg." + parameters_[i].name, exp_avg_[i]);
    list.emplace_back("exp_avg_sq." + parameters_[i].name, exp_avg_sq_[i]);
  }
  return list;
}

std::int64_t AdamW::state_bytes() const {
  std::int64_t bytes = 0;
  for (const at::Tensor& t : exp_avg_)
    bytes += 2 * t.numel() * 4;
  return bytes;
}

double clip_scale(double norm, double clip) { return clip > 0 && norm > clip ? clip / norm : 1.0; }

}  // namespace kda::train
