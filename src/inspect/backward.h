/// The backward pass of a recorded forward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "inspect/recorder.h"

namespace kda::inspect {

/// Runs autograd from `loss` and records each gradient function as one node: what came in, what
/// went out, its forward operation. Sums of gradients between them are operations of their own. The
/// graph of autograd stays alive with the nodes, so that they can be replayed. A phase of the
/// recorder must be open. Gradients end up in the leaves as always.
void record_backward(Recorder& recorder, const at::Tensor& loss);

/// "torch::autograd::CppNode<kda::model::LinearFunction>" and "MulBackward0" as "linear_backward"
/// and "mul_backward".
std::string gradient_name(const std::string& name);

}  // namespace kda::inspect
