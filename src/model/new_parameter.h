/// Allocation of model parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kda/types.h"

namespace kda::model {

/// What every layer is made with.
struct LayerOptions {
  DType activation = DType::kF32;  ///< of activations and matrix products
  std::string backend = "auto";    ///< of the KDA operator
  at::TensorOptions tensors;       ///< of the parameters: f32, or f64 for tests, and the device
};

/// A leaf that requires grad, uninitialised.
at::Tensor new_parameter(at::IntArrayRef shape, const at::TensorOptions& options);

/// Matrices [rows[i], columns] that follow each other in one memory block: one product serves them
/// all (linear.h), while each stays a parameter of its own.
std::vector<at::Tensor> new_neighbours(const std::vector<std::int64_t>& rows, std::int64_t columns,
                                       const at::TensorOptions& options);

}  // namespace kda::model
