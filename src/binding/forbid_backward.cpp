// Operators without a derivative: their outputs say so when someone differentiates them, instead of
// passing zeros. That covers the second derivative, since the `_bwd` operators are among them.
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <string>
#include <vector>

#include "binding/stack.h"

namespace kda::binding {
namespace {

using torch::autograd::variable_list;

std::string reason(const std::string& name) {
  if (name == "kda::chunk_bwd" || name == "kda::gate_bwd" || name == "kda::l2norm_bwd") {
    return "kda: double backward is not supported (" + name + " has no derivative)";
  }
  if (name.rfind("kda::recurrent", 0) == 0) {
    return "kda: the token-by-token operator has no backward pass (" + name +
           "); use chunk_kda for training";
  }
  return "kda: " + name + " has no derivative";
}

// The tensors of the last `count` stack values that require a gradient.
variable_list recorded_tensors(const Stack& stack, std::size_t count) {
  variable_list tensors;
  for (std::size_t i = stack.size() - count; i < stack.size(); ++i) {
    if (!stack[i].isTensor()) continue;
    const at::Tensor& tensor = stack[i].toTensor();
    if (tensor.defined() && tensor.requires_grad()) tensors.push_back(tensor);
  }
  return tensors;
}

void forbid_backward(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  variable_list inputs;
  if (at::GradMode::is_enabled()) inputs = recorded_tensors(*stack, schema.arguments().size());
  {
    const at::AutoDispatchBelowAutograd below;
    op.callBoxed(stack);
  }
  if (inputs.empty()) return;
  const auto node = std::make_shared<torch::autograd::Error>(
      reason(schema.name()), torch::autograd::collect_next_edges(inputs));
  for (std::size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (!value.isTensor()) continue;
    at::Tensor output = value.toTensor();
    if (output.defined() && output.numel() > 0 && output.is_floating_point()) {
      torch::autograd::set_history(output, node);
    }
  }
}

// Raises the version of what an in-place operator wrote, also where autograd is not involved.
void bump_versions(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const std::size_t first = stack->size() - arguments.size();
  std::vector<at::Tensor> written;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) written.push_back((*stack)[first + i].toTensor());
  }
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    op.callBoxed(stack);
  }
  for (const at::Tensor& tensor : written)
    torch::autograd::impl::bump_version(tensor);
}

// In-place operators record nothing at all, so a call that autograd watches is refused.
void forbid_recording(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  if (at::GradMode::is_enabled()) {
    TORCH_CHECK(recorded_tensors(*stack, schema.arguments().size()).empty(), schema.name(),
                ": writes into its arguments and records no gradient, but one of them requires "
                "one; call it under torch.no_grad()");
  }
  const at::AutoDispatchBelowAutograd below;
  op.callBoxed(stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(kda, Autograd, m) {
  for (const char* name : {"chunk_bwd", "recurrent_fwd", "gate_bwd", "gate_cumsum", "l2norm_bwd"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&forbid_backward>());
  }
  for (const char* name : {"recurrent_out", "recurrent_pool", "recurrent_pool_out"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&forbid_recording>());
  }
}

TORCH_LIBRARY_IMPL(kda, ADInplaceOrView, m) {
  for (const char* name : {"recurrent_out", "recurrent_pool", "recurrent_pool_out"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&bump_versions>());
  }
}

}  // namespace kda::binding
