#include "train/optimizer.h"

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "kda/error.h"
#include "kda/parallel.h"
#include "train/adamw.h"
#include "train/element_blocks.h"
#include "train/muon.h"
#include "train/simd_clones.h"

namespace kda::train {
namespace {

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

/// One finite sum of squares per parameter that has a gradient: what both devices end in.
struct PartialNorms {
  std::vector<std::size_t> parameter;
  std::vector<double> squares;
};

PartialNorms norms_on_host(const std::vector<model::Parameter>& parameters) {
  const std::vector<ElementBlock> list = element_blocks(parameters);
  std::vector<at::Tensor> gradients;
  for (const model::Parameter& p : parameters) {
    const at::Tensor& grad = p.tensor.grad();
    gradients.push_back(grad.defined() ? grad.contiguous() : at::Tensor());
  }
  PartialNorms partial;
  partial.squares.assign(list.size(), 0.0);
  const auto num_blocks = static_cast<std::int64_t>(list.size());
#pragma omp parallel for schedule(static) num_threads(kda::num_threads())
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    const ElementBlock& block = list[static_cast<std::size_t>(b)];
    const at::Tensor& grad = gradients[block.parameter];
    if (grad.defined()) {
      partial.squares[static_cast<std::size_t>(b)] =
          square_sum(grad.const_data_ptr<float>() + block.begin, block.count);
    }
  }
  for (const ElementBlock& block : list)
    partial.parameter.push_back(block.parameter);
  return partial;
}

/// One norm per gradient in fused launches, accumulated in double like on the host, and one copy to
/// the host.
PartialNorms norms_on_device(const std::vector<model::Parameter>& parameters) {
  PartialNorms partial;
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& grad = parameters[i].tensor.grad();
    if (!grad.defined()) continue;
    partial.parameter.push_back(i);
    gradients.push_back(grad);
  }
  if (gradients.empty()) return partial;
  const at::Tensor norms =
      at::stack(at::_foreach_norm(gradients, 2, at::kDouble)).to(at::kCPU).contiguous();
  const double* values = norms.const_data_ptr<double>();
  for (std::int64_t i = 0; i < norms.numel(); ++i)
    partial.squares.push_back(values[i] * values[i]);
  return partial;
}

}  // namespace

std::vector<ElementBlock> element_blocks(const std::vector<model::Parameter>& parameters) {
  std::vector<ElementBlock> list;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::int64_t count = parameters[i].tensor.numel();
    for (std::int64_t begin = 0; begin < count; begin += kBlockElements) {
      list.push_back({i, begin, std::min(kBlockElements, count - begin)});
    }
  }
  return list;
}

at::Tensor gradient_or_zeros(const model::Parameter& parameter) {
  const at::Tensor& grad = parameter.tensor.grad();
  return grad.defined() ? grad.contiguous() : at::zeros_like(parameter.tensor.detach());
}

Optimizer::Optimizer(std::vector<model::Parameter> parameters)
    : parameters_(std::move(parameters)) {
  for (const model::Parameter& p : parameters_) {
    const c10::Device wanted = parameters_.front().tensor.device();
    if (p.tensor.scalar_type() != at::kFloat || !p.tensor.is_contiguous() ||
        p.tensor.device() != wanted) {
      throw Error(ErrorCode::kUnsupported,
                  "optimizer: " + p.name + ": expected a contiguous f32 tensor on " + wanted.str() +
                      ", got " + std::string(p.tensor.dtype().name()) + " on " +
                      p.tensor.device().str());
    }
  }
}

GradientStats Optimizer::gradient_stats() const {
  const c10::NoGradGuard no_grad;
  const bool on_host = parameters_.empty() || parameters_.front().tensor.is_cpu();
  const PartialNorms partial = on_host ? norms_on_host(parameters_) : norms_on_device(parameters_);
  GradientStats stats;
  double total = 0;
  for (std::size_t i = 0; i < partial.squares.size(); ++i) {
    total += partial.squares[i];
    // A finite f32 squared and summed cannot overflow a double: not finite means that the gradient
    // itself is not.
    if (std::isfinite(partial.squares[i])) continue;
    const std::string& name = parameters_[partial.parameter[i]].name;
    if (stats.nearest_nonfinite != name) ++stats.num_nonfinite;
    stats.nearest_nonfinite = name;
  }
  stats.norm = std::sqrt(total);
  return stats;
}

void Optimizer::step(double lr, double gradient_scale) {
  const c10::NoGradGuard no_grad;
  set_updates(updates_ + 1);
  update(lr, gradient_scale);
}

void Optimizer::clear_gradients() {
  for (const model::Parameter& p : parameters_)
    p.tensor.mutable_grad().reset();
}

std::int64_t Optimizer::state_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : state())
    bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

std::unique_ptr<Optimizer> make_optimizer(std::vector<model::Parameter> parameters,
                                          const OptimizerOptions& o) {
  const AdamWOptions adamw{o.beta1, o.beta2, o.eps, o.weight_decay};
  if (o.kind == "adamw") return std::make_unique<AdamW>(std::move(parameters), adamw);
  if (o.kind == "muon") {
    return std::make_unique<Muon>(std::move(parameters), MuonOptions{o.momentum, o.weight_decay},
                                  adamw);
  }
  throw Error(ErrorCode::kInvalidArgument,
              "--optimizer: expected adamw or muon, got '" + o.kind + "'");
}

std::int64_t optimizer_state_bytes(const std::vector<model::Parameter>& parameters,
                                   const std::string& kind) {
  std::int64_t bytes = 0;
  for (const model::Parameter& p : parameters) {
    const std::int64_t moments = kind == "muon" && takes_muon(p) ? 1 : 2;
    bytes += moments * p.tensor.numel() * static_cast<std::int64_t>(sizeof(float));
  }
  return bytes;
}

double clip_scale(double norm, double clip) { return clip > 0 && norm > clip ? clip / norm : 1.0; }

}  // namespace kda::train
