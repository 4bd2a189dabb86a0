#include "model/gated_mlp.h"

#include "model/gated_activation.h"
#include "model/linear.h"

namespace kda::model {

GatedMlp::GatedMlp(std::int64_t hidden_size, std::int64_t width, const Activation& activation,
                   const LayerOptions& layer)
    : activation_(activation), down_proj_(new_parameter({hidden_size, width}, layer.tensors)) {
  const auto inputs = new_neighbours({width, width}, hidden_size, layer.tensors);
  gate_proj_ = inputs[0];
  up_proj_ = inputs[1];
}

at::Tensor GatedMlp::forward(const at::Tensor& x) const {
  const auto both = linear(x, {gate_proj_, up_proj_});
  return linear_one(gated_activation(both[0], both[1], activation_), down_proj_);
}

void GatedMlp::collect(const std::string& prefix, std::vector<Parameter>& parameters) const {
  parameters.push_back({prefix + "gate_proj.weight", gate_proj_, ParameterKind::kMatrix});
  parameters.push_back({prefix + "up_proj.weight", up_proj_, ParameterKind::kMatrix});
  parameters.push_back({prefix + "down_proj.weight", down_proj_, ParameterKind::kMatrix});
}

}  // namespace kda::model
