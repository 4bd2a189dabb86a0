/// What runs from layer to layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/observe.h"

namespace kda::model {

/// The residual stream between layers: its value is base + delta. The sum is formed together with
/// the next norm.
struct Residual {
  at::Tensor base;   ///< [tokens,d] f32 (f64)
  at::Tensor delta;  ///< [tokens,d] in the activation dtype; undefined = 0

  at::Tensor sum() const;
};

/// With attention residuals: the sources that are finished, and in `residual.base` the one that is
/// still running. Without: no sources.
struct Depth {
  Residual residual;
  std::vector<at::Tensor> sources;  ///< [tokens,d] f32 (f64) each, shared, never changed
};

template <>
struct ObservedParts<Depth> {
  template <typename Visit>
  static void tensors(Depth& value, Visit&& visit) {
    visit("base", value.residual.base);
    if (value.residual.delta.defined()) visit("delta", value.residual.delta);
  }
};

}  // namespace kda::model
