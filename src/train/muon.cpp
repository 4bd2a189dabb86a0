#include "train/muon.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "kda/error.h"

namespace kda::train {
namespace {

constexpr double kA = 3.4445;
constexpr double kB = -4.7750;
constexpr double kC = 2.0315;
constexpr int kIterations = 5;
constexpr double kNormFloor = 1e-7;
constexpr double kUpdateRms = 0.2;  ///< of AdamW's updates, which this matches
/// Elements of one batch: bounds the scratch memory (a few copies in bf16 or f32) and is far more
/// than what keeps a GPU busy.
constexpr std::int64_t kBatchElements = std::int64_t{1} << 25;

std::int64_t columns_of(const model::Parameter& p) { return p.tensor.size(-1); }

/// Rows of one block; 0 when the parameter cannot be cut into its heads.
std::int64_t block_rows_of(const model::Parameter& p) {
  const std::int64_t rows = p.tensor.size(-2);
  const std::int64_t blocks = std::max<std::int64_t>(1, p.head_blocks);
  return rows % blocks == 0 ? rows / blocks : 0;
}

}  // namespace

bool takes_muon(const model::Parameter& p) {
  const bool matrix = p.kind == model::ParameterKind::kMatrix && p.tensor.dim() == 2;
  const bool experts = p.kind == model::ParameterKind::kExperts && p.tensor.dim() == 3;
  return (matrix || experts) && block_rows_of(p) >= 2 && columns_of(p) >= 2;
}

at::Tensor newton_schulz(const at::Tensor& batch) {
  const bool tall = batch.size(1) > batch.size(2);
  // The norm in f32 even for bf16 batches: its square may leave eight bits of precision.
  const at::ScalarType wide = batch.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor norm =
      at::linalg_vector_norm(batch, 2, at::IntArrayRef({1, 2}), /*keepdim=*/true, wide);
  at::Tensor x = batch.div(norm.add(kNormFloor)).to(batch.scalar_type());
  if (tall) x = x.transpose(1, 2);
  for (int i = 0; i < kIterations; ++i) {
    const at::Tensor a = at::bmm(x, x.transpose(1, 2));
    const at::Tensor b = at::baddbmm(a, a, a, kB, kC);
    x = at::baddbmm(x, b, x, kA, 1);
  }
  return tall ? x.transpose(1, 2) : x;
}

Muon::Muon(std::vector<model::Parameter> parameters, const MuonOptions& options,
           const AdamWOptions& others)
    : Optimizer(std::move(parameters)), options_(options) {
  std::vector<model::Parameter> rest;
  for (const model::Parameter& p : this->parameters()) {
    if (takes_muon(p)) {
      matrices_.push_back(p);
      momentum_.push_back(at::zeros_like(p.tensor.detach()));
    } else {
      rest.push_back(p);
    }
  }
  others_ = std::make_unique<AdamW>(std::move(rest), others);
  make_groups();
}

void Muon::make_groups() {
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const std::int64_t rows = block_rows_of(matrices_[i]);
    const std::int64_t columns = columns_of(matrices_[i]);
    const auto fits = [&](const Group& group) {
      if (group.rows != rows || group.columns != columns) return false;
      std::int64_t elements = matrices_[i].tensor.numel();
      for (const std::size_t member : group.members)
        elements += matrices_[member].tensor.numel();
      return elements <= kBatchElements;
    };
    // The last group of a shape is the one that is being filled.
    const auto at = std::find_if(groups_.rbegin(), groups_.rend(), fits);
    if (at != groups_.rend()) {
      at->members.push_back(i);
    } else {
      groups_.push_back({{i}, rows, columns});
    }
  }
}

void Muon::set_updates(std::int64_t updates) {
  Optimizer::set_updates(updates);
  // AdamW counts for itself in step(); restored, both must agree.
  others_->set_updates(updates);
}

void Muon::update_group(const Group& group, double lr, double gradient_scale) {
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> momentum;
  for (const std::size_t i : group.members) {
    gradients.push_back(gradient_or_zeros(matrices_[i]));
    momentum.push_back(momentum_[i]);
  }
  if (gradient_scale != 1.0) at::_foreach_mul_(gradients, gradient_scale);
  at::_foreach_mul_(momentum, options_.momentum);
  at::_foreach_add_(momentum, gradients);
  // The gradients become the Nesterov direction in place: nobody reads them afterwards.
  at::_foreach_add_(gradients, momentum, options_.momentum);

  std::vector<at::Tensor> blocks;
  for (const at::Tensor& direction : gradients)
    blocks.push_back(direction.view({-1, group.rows, group.columns}));
  at::Tensor batch = at::cat(blocks);
  if (!batch.is_cpu()) batch = batch.to(at::kBFloat16);
  const at::Tensor orthogonal = newton_schulz(batch);

  const double step =
      lr * kUpdateRms * std::sqrt(static_cast<double>(std::max(group.rows, group.columns)));
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> updates;
  std::int64_t begin = 0;
  for (std::size_t k = 0; k < group.members.size(); ++k) {
    const at::Tensor weight = matrices_[group.members[k]].tensor.detach();
    const std::int64_t count = blocks[k].size(0);
    weights.push_back(weight);
    updates.push_back(orthogonal.narrow(0, begin, count).to(at::kFloat).reshape(weight.sizes()));
    begin += count;
  }
  at::_foreach_mul_(weights, 1.0 - lr * options_.weight_decay);
  at::_foreach_add_(weights, updates, -step);
}

void Muon::update(double lr, double gradient_scale) {
  for (const Group& group : groups_)
    update_group(group, lr, gradient_scale);
  others_->set_updates(updates() - 1);
  others_->step(lr, gradient_scale);
}

Optimizer::NamedTensors Muon::state() const {
  NamedTensors list;
  for (std::size_t i = 0; i < matrices_.size(); ++i)
    list.emplace_back("momentum." + matrices_[i].name, momentum_[i]);
  for (auto& entry : others_->state())
    list.push_back(std::move(entry));
  return list;
}

std::string Muon::description() const {
  return "muon (" + std::to_string(matrices_.size()) + " matrices), adamw (" +
         std::to_string(others_->parameters().size()) + " tensors)";
}

}  // namespace kda::train
