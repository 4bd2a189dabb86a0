#include "model/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "model/device.h"
#include "model/device_kernels.h"
#include "model/kernels/norms.h"
#include "model/observe.h"
#include "model/tensors.h"

namespace kda::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

DeviceRmsNorm on_device(const AddRmsNormForward& args, const at::Tensor& residual) {
  DeviceRmsNorm out;
  out.storage = args.storage;
  out.stream = current_stream(residual);
  out.rows = args.rows;
  out.width = args.width;
  out.eps = static_cast<float>(args.eps);
  out.gain = static_cast<const float*>(args.gain);
  out.residual = static_cast<const float*>(args.residual);
  out.delta = args.delta;
  out.sum = static_cast<float*>(args.sum);
  out.y = args.y;
  return out;
}

void backward_on(const AddRmsNormBackward& args, const at::Tensor& sum) {
  if (sum.is_cpu()) return add_rms_norm_backward(args);
  const at::Tensor partial = at::empty({kDevicePartialRows, args.width}, sum.options());
  DeviceRmsNorm out;
  out.storage = args.storage;
  out.stream = current_stream(sum);
  out.rows = args.rows;
  out.width = args.width;
  out.eps = static_cast<float>(args.eps);
  out.gain = static_cast<const float*>(args.gain);
  out.sum = static_cast<float*>(const_cast<void*>(args.sum));
  out.dy = args.dy;
  out.dsum = static_cast<const float*>(args.dsum);
  out.dresidual = static_cast<float*>(args.dresidual);
  out.ddelta = args.ddelta;
  out.dgain = static_cast<float*>(args.dgain);
  out.partial = partial.mutable_data_ptr<float>();
  device_kernels().rms_norm_backward(out);
}

struct AddRmsNormFunction : torch::autograd::Function<AddRmsNormFunction> {
  // Outputs {y} without delta, {sum, y} with it.
  static variable_list forward(AutogradContext* ctx, const at::Tensor& residual_in,
                               const std::optional<at::Tensor>& delta_in, const at::Tensor& gain,
                               double eps, std::int64_t activation) {
    const auto storage = static_cast<DType>(activation);
    const at::Tensor residual = residual_in.contiguous();
    const bool has_delta = delta_in.has_value();
    const at::Tensor delta = has_delta ? delta_in->contiguous() : at::Tensor();
    const at::Tensor sum = has_delta ? at::empty_like(residual) : residual;
    const at::Tensor y =
        at::empty(residual.sizes(), residual.options().dtype(scalar_type_of(storage)));
    AddRmsNormForward args;
    args.storage = storage;
    args.rows = residual.size(0);
    args.width = residual.size(1);
    args.eps = eps;
    args.residual = residual.const_data_ptr();
    args.delta = has_delta ? delta.const_data_ptr() : nullptr;
    args.gain = gain.const_data_ptr();
    args.sum = has_delta ? sum.mutable_data_ptr() : nullptr;
    args.y = y.mutable_data_ptr();
    if (residual.is_cpu()) {
      add_rms_norm_forward(args);
    } else {
      device_kernels().rms_norm_forward(on_device(args, residual));
    }
    ctx->save_for_backward({sum, gain});
    ctx->saved_data["eps"] = eps;
    ctx->saved_data["activation"] = activation;
    ctx->saved_data["has_delta"] = has_delta;
    ctx->set_materialize_grads(false);
    if (has_delta) return {sum, y};
    return {y};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& sum = saved[0];
    const at::Tensor& gain = saved[1];
    const auto storage = static_cast<DType>(ctx->saved_data["activation"].toInt());
    const bool has_delta = ctx->saved_data["has_delta"].toBool();
    const at::Tensor dsum = has_delta ? grads[0] : at::Tensor();
    const at::Tensor dy = has_delta ? grads[1] : grads[0];
    if (!dy.defined()) {  // only the sum was used
      if (!dsum.defined()) return {{}, {}, {}, {}, {}};
      return {dsum, dsum.to(scalar_type_of(storage)), {}, {}, {}};
    }
    const at::Tensor dy_rows = dy.contiguous();
    const at::Tensor dsum_rows = dsum.defined() ? dsum.contiguous() : at::Tensor();
    const at::Tensor dresidual = at::empty_like(sum);
    const at::Tensor dgain = at::empty_like(gain);
    const bool second_copy = has_delta && storage == DType::kBF16;
    const at::Tensor ddelta = second_copy ? at::empty_like(dy_rows)
                              : has_delta ? dresidual
                                          : at::Tensor();
    AddRmsNormBackward args;
    args.storage = storage;
    args.rows = sum.size(0);
    args.width = sum.size(1);
    args.eps = ctx->saved_data["eps"].toDouble();
    args.sum = sum.const_data_ptr();
    args.gain = gain.const_data_ptr();
    args.dy = dy_rows.const_data_ptr();
    args.dsum = dsum_rows.defined() ? dsum_rows.const_data_ptr() : nullptr;
    args.dresidual = dresidual.mutable_data_ptr();
    args.ddelta = second_copy ? ddelta.mutable_data_ptr() : nullptr;
    args.dgain = dgain.mutable_data_ptr();
    backward_on(args, sum);
    return {dresidual, ddelta, dgain, {}, {}};
  }
};

}  // namespace

NormedSum add_rms_norm_composed(const at::Tensor& residual, const at::Tensor& delta,
                                const at::Tensor& gain, double eps, DType activation) {
  const at::Tensor sum = delta.defined() ? residual + delta.to(residual.scalar_type()) : residual;
  const at::Tensor rstd = at::rsqrt((sum * sum).mean(-1, /*keepdim=*/true) + eps);
  return {sum, (sum * rstd * gain).to(scalar_type_of(activation))};
}

namespace {

NormedSum add_rms_norm_now(const at::Tensor& residual, const at::Tensor& delta,
                           const at::Tensor& gain, double eps, DType activation) {
  if (!has_kernels(residual)) return add_rms_norm_composed(residual, delta, gain, eps, activation);
  const variable_list out = AddRmsNormFunction::apply(residual, given(delta), gain, eps,
                                                      static_cast<std::int64_t>(activation));
  if (delta.defined()) return {out[0], out[1]};
  return {residual, out[0]};
}

}  // namespace

NormedSum add_rms_norm(const at::Tensor& residual, const at::Tensor& delta, const at::Tensor& gain,
                       double eps, DType activation) {
  return observed("add_rms_norm", add_rms_norm_now, arg("residual", residual), arg("delta", delta),
                  arg("gain", gain), arg("eps", eps), arg("activation", activation));
}

}  // namespace kda::model
