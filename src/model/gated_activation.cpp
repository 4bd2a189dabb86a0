#include "model/gated_activation.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/device.h"
#include "model/device_kernels.h"
#include "model/kernels/situ_glu.h"
#include "model/observe.h"
#include "model/situ_glu.h"
#include "model/swiglu.h"
#include "model/tensors.h"

namespace kda::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool is_situ(const Activation& activation) { return activation.kind == ActivationKind::kSitu; }

SituBetas betas_of(const Activation& activation) {
  return {activation.situ_beta, activation.situ_linear_beta};
}

SituCaps caps_of(const Activation& activation) {
  return {activation.situ_beta, activation.situ_linear_beta};
}

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

DeviceGlu on_device(const SwigluForward& args, const at::Tensor& gate,
                    const Activation& activation) {
  DeviceGlu out;
  out.storage = args.storage;
  out.stream = current_stream(gate);
  out.rows = args.rows;
  out.width = args.width;
  if (is_situ(activation)) {
    out.gate_cap = static_cast<float>(activation.situ_beta);
    out.up_cap = static_cast<float>(activation.situ_linear_beta);
  }
  out.gate = args.gate;
  out.up = args.up;
  out.stride = args.stride;
  out.y = args.y;
  return out;
}

struct GatedActivationFunction : torch::autograd::Function<GatedActivationFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_in,
                            const at::Tensor& up_in, const Activation& activation) {
    const bool as_is =
        has_unit_rows(gate_in) && has_unit_rows(up_in) && gate_in.stride(0) == up_in.stride(0);
    const at::Tensor gate = as_is ? gate_in : gate_in.contiguous();
    const at::Tensor up = as_is ? up_in : up_in.contiguous();
    ctx->save_for_backward({gate, up});
    ctx->saved_data["kind"] = static_cast<std::int64_t>(activation.kind);
    ctx->saved_data["beta"] = activation.situ_beta;
    ctx->saved_data["linear_beta"] = activation.situ_linear_beta;
    return gated_activation_forward(gate, up, activation);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Activation activation{static_cast<ActivationKind>(ctx->saved_data["kind"].toInt()),
                                ctx->saved_data["beta"].toDouble(),
                                ctx->saved_data["linear_beta"].toDouble()};
    const at::Tensor both =
        gated_activation_backward(saved[0], saved[1], grads[0].contiguous(), activation);
    const std::int64_t width = saved[0].size(1);
    return {both.narrow(1, 0, width), both.narrow(1, width, width), {}};
  }
};

}  // namespace

at::Tensor gated_activation_forward(const at::Tensor& gate, const at::Tensor& up,
                                    const Activation& activation) {
  if (!has_kernels(gate)) {
    return is_situ(activation) ? situ_glu_composed(gate, up, betas_of(activation))
                               : swiglu_composed(gate, up);
  }
  const at::Tensor y = at::empty(gate.sizes(), gate.options().requires_grad(false));
  SwigluForward args = arguments(gate, up);
  args.y = y.mutable_data_ptr();
  if (!gate.is_cpu()) {
    device_kernels().glu_forward(on_device(args, gate, activation));
  } else if (is_situ(activation)) {
    situ_forward(args, caps_of(activation));
  } else {
    swiglu_forward(args);
  }
  return y;
}

at::Tensor gated_activation_backward(const at::Tensor& gate, const at::Tensor& up,
                                     const at::Tensor& dy, const Activation& activation) {
  const std::int64_t width = gate.size(1);
  const at::Tensor both = at::empty({gate.size(0), 2 * width}, dy.options());
  const at::Tensor dgate = both.narrow(1, 0, width);
  const at::Tensor dup = both.narrow(1, width, width);
  if (!has_kernels(gate)) {
    if (is_situ(activation)) {
      situ_glu_backward_composed(gate, up, dy, betas_of(activation), dgate, dup);
    } else {
      swiglu_backward_composed(gate, up, dy, dgate, dup);
    }
    return both;
  }
  SwigluBackward args;
  args.forward = arguments(gate, up);
  args.dy = dy.const_data_ptr();
  args.dgate = dgate.mutable_data_ptr();
  args.dup = dup.mutable_data_ptr();
  args.d_stride = 2 * width;
  if (!gate.is_cpu()) {
    DeviceGlu out = on_device(args.forward, gate, activation);
    out.dy = args.dy;
    out.dgate = args.dgate;
    out.dup = args.dup;
    out.d_stride = args.d_stride;
    device_kernels().glu_backward(out);
  } else if (is_situ(activation)) {
    situ_backward(args, caps_of(activation));
  } else {
    swiglu_backward(args);
  }
  return both;
}

at::Tensor gated_activation(const at::Tensor& gate, const at::Tensor& up,
                            const Activation& activation) {
  const auto run = [](const auto&... args) { return GatedActivationFunction::apply(args...); };
  return observed("gated_activation", run, arg("gate", gate), arg("up", up),
                  arg("activation", activation));
}

}  // namespace kda::model
