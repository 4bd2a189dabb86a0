// From the public views and core::Problem to kernel arguments.
#pragma once

#include "core/problem.h"
#include "cuda/args.h"
#include "cuda/launch/launch.h"

namespace kda::cuda {

Elem elem_of(DType dtype);
Tensor to_tensor(const ConstTensorView& view);
Tensor to_tensor(const TensorView& view);
Shape to_shape(const core::Problem& problem);
Gate to_gate(const GateParams& params, bool raw);
// cu_seqlens where they lie.
PackedOffsets packed_offsets(const OperatorInputs& in, const core::Problem& problem);
Inputs to_inputs(const OperatorInputs& in, const core::Problem& problem);

}  // namespace kda::cuda
