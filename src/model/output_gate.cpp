#include "model/output_gate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/observe.h"
#include "model/tensors.h"

namespace kda::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct OutputGateFunction : torch::autograd::Function<OutputGateFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& o, const at::Tensor& gate) {
    ctx->save_for_backward({o, gate});
    const at::ScalarType wide = island_type_of(o.scalar_type());
    return (at::sigmoid(gate.to(wide)).mul_(o)).to(o.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::ScalarType type = saved[0].scalar_type();
    const at::ScalarType wide = island_type_of(type);
    const at::Tensor s = at::sigmoid(saved[1].to(wide));
    const at::Tensor from_o = grads[0] * s;  // f32: s is wide
    const at::Tensor dgate = (from_o * saved[0]).mul_(1 - s);
    return {from_o.to(type), dgate.to(type)};
  }
};

}  // namespace

at::Tensor output_gate(const at::Tensor& o, const at::Tensor& gate) {
  const auto run = [](const auto&... args) { return OutputGateFunction::apply(args...); };
  return observed("output_gate", run, arg("o", o), arg("gate", gate));
}

}  // namespace kda::model
