#include "model/linear.h"

#include <ATen/cpu/Utils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/kernels/small_product.h"
#include "model/observe.h"
#include "model/tensors.h"

namespace kda::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// One function for all weights, so that forward and backward are one product each.
struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList weights) {
    const at::Tensor weight = joined(weights, 0);
    const at::Tensor y = product_forward(x, weight);
    variable_list outputs;
    std::vector<std::int64_t> rows;
    outputs.reserve(weights.size());
    std::int64_t column = 0;
    for (const at::Tensor& w : weights) {
      outputs.push_back(y.narrow(1, column, w.size(0)));
      rows.push_back(w.size(0));
      column += w.size(0);
    }
    variable_list saved(weights.begin(), weights.end());
    saved.push_back(x);
    ctx->save_for_backward(saved);
    ctx->saved_data["rows"] = rows;
    ctx->set_materialize_grads(false);
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list saved = ctx->get_saved_variables();
    const at::Tensor x = saved.back();
    saved.pop_back();
    const auto rows = ctx->saved_data["rows"].toIntVector();
    bool any = false;
    for (const at::Tensor& grad : grads)
      any = any || grad.defined();
    variable_list result(saved.size() + 1);
    if (!any) return result;
    for (std::size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) grads[i] = at::zeros({x.size(0), rows[i]}, x.options());
    }
    const at::Tensor dy = joined(grads, 1);
    if (ctx->needs_input_grad(0)) result[0] = product_input_gradient(dy, joined(saved, 0));
    bool any_weight = false;
    for (std::size_t i = 0; i < saved.size(); ++i) {
      any_weight = any_weight || ctx->needs_input_grad(i + 1);
    }
    if (any_weight) {
      const at::Tensor dweight = product_weight_gradient(dy, x);
      std::int64_t row = 0;
      for (std::size_t i = 0; i < saved.size(); ++i) {
        result[i + 1] = dweight.narrow(0, row, rows[i]);
        row += rows[i];
      }
    }
    return result;
  }
};

// A few rows against a large matrix cost the time of reading it; matrix libraries are made for many
// rows and read it slower (or with one thread).
bool is_small(const at::Tensor& x, const at::Tensor& weight) {
  return x.is_cpu() && x.size(0) > 0 && x.size(0) <= kSmallProductRows &&
         weight.scalar_type() == at::kFloat && x.scalar_type() != at::kDouble &&
         has_unit_rows(weight);
}

at::Tensor small(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor rows = x.to(at::kFloat).contiguous();
  const at::Tensor y = at::empty({x.size(0), weight.size(0)}, rows.options());
  SmallProduct args;
  args.rows = rows.size(0);
  args.in = rows.size(1);
  args.out = weight.size(0);
  args.x = rows.const_data_ptr<float>();
  args.x_stride = rows.stride(0);
  args.weight = weight.const_data_ptr<float>();
  args.weight_stride = weight.stride(0);
  args.y = y.mutable_data_ptr<float>();
  small_product(args);
  return y.to(x.scalar_type());
}

}  // namespace

bool has_native_bf16_products(const at::Device& device) {
  if (!device.is_cpu()) return true;
  static const bool native = [] {
    const auto capabilities = at::cpu::get_cpu_capabilities();
    const auto has = [&](const char* name) {
      const auto found = capabilities.find(name);
      return found != capabilities.end() && found->second.isBool() && found->second.toBool();
    };
    return has("avx512_bf16") || has("amx_bf16");
  }();
  return native;
}

at::Tensor product_forward(const at::Tensor& x, const at::Tensor& weight) {
  if (is_small(x, weight)) return small(x, weight);
  if (x.scalar_type() == weight.scalar_type()) return at::mm(x, weight.t());
  if (has_native_bf16_products(x.device())) return at::mm(x, weight.to(x.scalar_type()).t());
  return at::mm(x.to(weight.scalar_type()), weight.t()).to(x.scalar_type());
}

at::Tensor product_input_gradient(const at::Tensor& dy, const at::Tensor& weight) {
  if (dy.scalar_type() == weight.scalar_type()) return at::mm(dy, weight);
  if (has_native_bf16_products(dy.device())) return at::mm(dy, weight.to(dy.scalar_type()));
  return at::mm(dy.to(weight.scalar_type()), weight).to(dy.scalar_type());
}

at::Tensor product_weight_gradient(const at::Tensor& dy, const at::Tensor& x) {
  const at::ScalarType island = island_type_of(x.scalar_type());
  if (x.scalar_type() == island) return at::mm(dy.t(), x);
  if (x.is_cuda()) return at::mm(dy.t(), x, island);  // no rounding to bf16 in between
  if (has_native_bf16_products(x.device())) return at::mm(dy.t(), x).to(island);
  return at::mm(dy.to(island).t(), x.to(island));
}

std::vector<at::Tensor> linear(const at::Tensor& x, at::TensorList weights) {
  const auto run = [](const at::Tensor& in, at::TensorList w) {
    return LinearFunction::apply(in, w);
  };
  return observed("linear", run, arg("x", x), arg("weight", weights));
}

at::Tensor linear_one(const at::Tensor& x, const at::Tensor& weight) {
  return linear(x, at::TensorList(&weight, 1)).front();
}

}  // namespace kda::model
