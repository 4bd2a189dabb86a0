#include "train/adamw.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "kda/parallel.h"
#include "train/element_blocks.h"
#include "train/simd_clones.h"

namespace kda::train {
namespace {

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

}  // namespace

AdamW::AdamW(std::vector<model::Parameter> parameters, const AdamWOptions& options)
    : Optimizer(std::move(parameters)), options_(options) {
  for (const model::Parameter& p : this->parameters()) {
    exp_avg_.push_back(at::zeros_like(p.tensor.detach()));
    exp_avg_sq_.push_back(at::zeros_like(p.tensor.detach()));
  }
}

bool AdamW::decays(std::size_t parameter) const {
  return model::takes_weight_decay(parameters()[parameter].kind);
}

void AdamW::update(double lr, double gradient_scale) {
  if (parameters().empty()) return;
  if (parameters().front().tensor.is_cpu()) {
    update_on_host(lr, gradient_scale);
  } else {
    update_on_device(lr, gradient_scale);
  }
}

void AdamW::update_on_host(double lr, double gradient_scale) {
  const double bias1 = 1.0 - std::pow(options_.beta1, static_cast<double>(updates()));
  const double bias2 = 1.0 - std::pow(options_.beta2, static_cast<double>(updates()));
  UpdateScalars scalars{};
  scalars.beta1 = static_cast<float>(options_.beta1);
  scalars.one_minus_beta1 = static_cast<float>(1.0 - options_.beta1);
  scalars.beta2 = static_cast<float>(options_.beta2);
  scalars.one_minus_beta2 = static_cast<float>(1.0 - options_.beta2);
  scalars.eps = static_cast<float>(options_.eps);
  scalars.step_size = static_cast<float>(lr / bias1);
  scalars.inv_sqrt_bias2 = static_cast<float>(1.0 / std::sqrt(bias2));
  scalars.gradient_scale = static_cast<float>(gradient_scale);

  const std::vector<ElementBlock> list = element_blocks(parameters());
  std::vector<at::Tensor> gradients;
  std::vector<float> keep;
  std::vector<float*> p;
  std::vector<float*> m;
  std::vector<float*> v;
  for (std::size_t i = 0; i < parameters().size(); ++i) {
    const at::Tensor& grad = parameters()[i].tensor.grad();
    gradients.push_back(grad.defined() ? grad.contiguous() : at::Tensor());
    keep.push_back(static_cast<float>(1.0 - (decays(i) ? lr * options_.weight_decay : 0.0)));
    p.push_back(parameters()[i].tensor.mutable_data_ptr<float>());
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

void AdamW::update_on_device(double lr, double gradient_scale) {
  for (const bool decayed : {true, false}) {
    std::vector<at::Tensor> p;
    std::vector<at::Tensor> g;
    std::vector<at::Tensor> m;
    std::vector<at::Tensor> v;
    for (std::size_t i = 0; i < parameters().size(); ++i) {
      if (decays(i) != decayed) continue;
      p.push_back(parameters()[i].tensor.detach());
      g.push_back(gradient_or_zeros(parameters()[i]));
      m.push_back(exp_avg_[i]);
      v.push_back(exp_avg_sq_[i]);
    }
    if (p.empty()) continue;
    if (gradient_scale != 1.0) at::_foreach_mul_(g, gradient_scale);
    // The kernel only reads the count, so one tensor serves all parameters.
    const at::Tensor count =
        at::full({}, static_cast<float>(updates()), p.front().options().dtype(at::kFloat));
    const std::vector<at::Tensor> counts(p.size(), count);
    at::_fused_adamw_(p, g, m, v, {}, counts, lr, options_.beta1, options_.beta2,
                      decayed ? options_.weight_decay : 0.0, options_.eps, false, false);
  }
}

Optimizer::NamedTensors AdamW::state() const {
  NamedTensors list;
  for (std::size_t i = 0; i < parameters().size(); ++i) {
    list.emplace_back("exp_avg." + parameters()[i].name, exp_avg_[i]);
    list.emplace_back("exp_avg_sq." + parameters()[i].name, exp_avg_sq_[i]);
  }
  return list;
}

std::string AdamW::description() const {
  return "adamw (" + std::to_string(parameters().size()) + " tensors)";
}

}  // namespace kda::train
