#include "model/swiglu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/device.h"
#include "model/device_kernels.h"
#include "model/kernels/swiglu.h"
#include "model/linear.h"
#include "model/tensors.h"

namespace kda::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

SwigluForward arguments(const at::Tensor& gate, const at::Tensor& up) {
  SwigluForward args;
  args.storage = dtype_of(gate);
  args.rows = gate.size(0);
  args.width = gate.size(1);
  args.gate = gate.const_data_ptr();
  args.up = up.const_data_ptr();
  args.stride = gate.stride(0);
  return args;
}

DeviceGlu on_device(const SwigluForward& args, const at::Tensor& gate) {
  DeviceGlu out;
  out.storage = args.storage;
  out.stream = current_stream(gate);
  out.rows = args.rows;
  out.width = args.width;
  out.gate = args.gate;
  out.up = args.up;
  out.stride = args.stride;
  out.y = args.y;
  return out;
}

void backward_on(const SwigluBackward& args, const at::Tensor& gate) {
  if (gate.is_cpu()) return swiglu_backward(args);
  DeviceGlu out = on_device(args.forward, gate);
  out.dy = args.dy;
  out.dgate = args.dgate;
  out.dup = args.dup;
  out.d_stride = args.d_stride;
  device_kernels().glu_backward(out);
}

struct SwigluFunction : torch::autograd::Function<SwigluFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_in,
                            const at::Tensor& up_in) {
    const bool as_is =
        has_unit_rows(gate_in) && has_unit_rows(up_in) && gate_in.stride(0) == up_in.stride(0);
    const at::Tensor gate = as_is ? gate_in : gate_in.contiguous();
    const at::Tensor up = as_is ? up_in : up_in.contiguous();
    const at::Tensor y = at::empty(gate.sizes(), gate.options());
    SwigluForward args = arguments(gate, up);
    args.y = y.mutable_data_ptr();
    if (gate.is_cpu()) {
      swiglu_forward(args);
    } else {
      device_kernels().glu_forward(on_device(args, gate));
    }
    ctx->save_for_backward({gate, up});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor dy = grads[0].contiguous();
    // Side by side, as the projection's backward wants them.
    const std::int64_t width = dy.size(1);
    const at::Tensor both = at::empty({dy.size(0), 2 * width}, dy.options());
    const at::Tensor dgate = both.narrow(1, 0, width);
    const at::Tensor dup = both.narrow(1, width, width);
    SwigluBackward args;
    args.forward = arguments(saved[0], saved[1]);
    args.dy = dy.const_data_ptr();
    args.dgate = dgate.mutable_data_ptr();
    args.dup = dup.mutable_data_ptr();
    args.d_stride = 2 * width;
    backward_on(args, saved[0]);
    return {dgate, dup};
  }
};

}  // namespace

at::Tensor swiglu_composed(const at::Tensor& gate, const at::Tensor& up) {
  const at::ScalarType island = island_type_of(gate.scalar_type());
  return (at::silu(gate.to(island)) * up.to(island)).to(gate.scalar_type());
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  if (!has_kernels(gate)) return swiglu_composed(gate, up);
  return SwigluFunction::apply(gate, up);
}

at::Tensor SwigluMlp::forward(const at::Tensor& x) const {
  const auto both = linear(x, {gate_proj, up_proj});
  return linear_one(swiglu(both[0], both[1]), down_proj);
}

}  // namespace kda::model
