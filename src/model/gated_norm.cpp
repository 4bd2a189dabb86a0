#include "model/gated_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/device.h"
#include "model/device_kernels.h"
#include "model/kernels/norms.h"
#include "model/observe.h"
#include "model/tensors.h"

namespace kda::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

GatedNormForward arguments(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& gain,
                           double eps) {
  GatedNormForward args;
  args.storage = dtype_of(x);
  args.tokens = x.size(0);
  args.heads = x.size(1);
  args.width = x.size(2);
  args.eps = eps;
  args.x = x.const_data_ptr();
  args.gate = gate.const_data_ptr();
  args.gate_stride = gate.stride(0);
  args.gain = gain.const_data_ptr();
  return args;
}

DeviceGatedNorm on_device(const GatedNormForward& args, const at::Tensor& x) {
  DeviceGatedNorm out;
  out.storage = args.storage;
  out.stream = current_stream(x);
  out.tokens = args.tokens;
  out.heads = args.heads;
  out.width = args.width;
  out.eps = static_cast<float>(args.eps);
  out.x = args.x;
  out.gate = args.gate;
  out.gate_stride = args.gate_stride;
  out.gain = static_cast<const float*>(args.gain);
  out.y = args.y;
  return out;
}

void backward_on(const GatedNormBackward& args, const at::Tensor& x, const at::Tensor& gain) {
  if (x.is_cpu()) return gated_norm_backward(args);
  const at::Tensor partial =
      at::empty({kDevicePartialRows, args.forward.width}, gain.options().requires_grad(false));
  DeviceGatedNorm out = on_device(args.forward, x);
  out.dy = args.dy;
  out.dx = args.dx;
  out.dgate = args.dgate;
  out.dgain = static_cast<float*>(args.dgain);
  out.partial = partial.mutable_data_ptr<float>();
  device_kernels().gated_norm_backward(out);
}

struct GatedNormFunction : torch::autograd::Function<GatedNormFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_in, const at::Tensor& gate_in,
                            const at::Tensor& gain, double eps) {
    const at::Tensor x = x_in.contiguous();
    const at::Tensor gate = has_unit_rows(gate_in) ? gate_in : gate_in.contiguous();
    const at::Tensor y = at::empty({x.size(0), x.size(1) * x.size(2)}, x.options());
    GatedNormForward args = arguments(x, gate, gain, eps);
    args.y = y.mutable_data_ptr();
    if (x.is_cpu()) {
      gated_norm_forward(args);
    } else {
      device_kernels().gated_norm_forward(on_device(args, x));
    }
    ctx->save_for_backward({x, gate, gain});
    ctx->saved_data["eps"] = eps;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor dy = grads[0].contiguous();
    const at::Tensor dx = at::empty_like(saved[0]);
    const at::Tensor dgate = at::empty_like(dy);
    const at::Tensor dgain = at::empty_like(saved[2]);
    GatedNormBackward args;
    args.forward = arguments(saved[0], saved[1], saved[2], ctx->saved_data["eps"].toDouble());
    args.dy = dy.const_data_ptr();
    args.dx = dx.mutable_data_ptr();
    args.dgate = dgate.mutable_data_ptr();
    args.dgain = dgain.mutable_data_ptr();
    backward_on(args, saved[0], saved[2]);
    return {dx, dgate, dgain, {}};
  }
};

}  // namespace

at::Tensor gated_norm_composed(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& gain,
                               double eps) {
  const at::ScalarType island = island_type_of(x.scalar_type());
  const at::Tensor wide = x.to(island);
  const at::Tensor rstd = at::rsqrt((wide * wide).mean(-1, /*keepdim=*/true) + eps);
  const at::Tensor open = at::sigmoid(gate.to(island)).view(x.sizes());
  return (wide * rstd * gain * open).flatten(1).to(x.scalar_type());
}

at::Tensor gated_norm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& gain,
                      double eps) {
  const auto run = [](const at::Tensor& in, const at::Tensor& g, const at::Tensor& weight,
                      double e) {
    return has_kernels(in) ? GatedNormFunction::apply(in, g, weight, e)
                           : gated_norm_composed(in, g, weight, e);
  };
  return observed("gated_norm", run, arg("x", x), arg("gate", gate), arg("gain", gain),
                  arg("eps", eps));
}

}  // namespace kda::model
