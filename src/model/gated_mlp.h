/// The dense feed-forward layer: down( activation(gate(x), up(x)) ), without biases.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "model/layer_config.h"
#include "model/new_parameter.h"
#include "model/parameter.h"

namespace kda::model {

class GatedMlp {
 public:
  /// Allocates the parameters, uninitialised: gate and up [width,d], down [d,width].
  GatedMlp(std::int64_t hidden_size, std::int64_t width, const Activation& activation,
           const LayerOptions& layer);

  /// x [tokens,d] in the activation dtype, normed; returns the same shape and dtype.
  /// Differentiable.
  at::Tensor forward(const at::Tensor& x) const;

  /// Appends the parameters under `prefix` ("model.layers.0.mlp.").
  void collect(const std::string& prefix, std::vector<Parameter>& parameters) const;

 private:
  Activation activation_;
  at::Tensor gate_proj_, up_proj_;  // neighbours in one memory block: one product serves both
  at::Tensor down_proj_;
};

}  // namespace kda::model
