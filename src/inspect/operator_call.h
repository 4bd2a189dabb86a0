/// Calls of torch operators as torch's observers see them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <string>
#include <vector>

#include "inspect/recorder.h"

namespace kda::inspect {

/// The tensors of values, lists opened, undefined ones left out.
std::vector<at::Tensor> tensors_in(c10::ArrayRef<c10::IValue> values);

/// An operator that is about to run, with names from its schema, and how to run it again.
Operation operation_of(const at::RecordFunction& function);

/// State of the generator that a random operation on these tensors draws from by default.
at::Tensor random_state(const std::vector<model::NamedTensor>& inputs);
/// Runs `body` with the default generator of `device` in `state`, then puts its own state back.
void with_random_state(const at::Tensor& state, c10::Device device,
                       const std::function<void()>& body);

/// Whether a torch operator of that name returns memory that nobody has written to.
bool is_uninitialised(const std::string& function);

}  // namespace kda::inspect
