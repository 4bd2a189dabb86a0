#include "model/experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/gated_activation.h"
#include "model/linear.h"
#include "model/observe.h"
#include "model/tensors.h"

namespace kda::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows of all (token, choice) pairs, sorted by expert; pairs of one expert keep the token order.
struct Sorted {
  at::Tensor token;  // [rows] i64, token of each sorted row
  at::Tensor place;  // [tokens,k] i64, sorted row of each pair
  at::Tensor ends;   // [E] i32 on the device, row after the last of each expert
};

Sorted sort_by_expert(const at::Tensor& experts, std::int64_t num_experts) {
  const auto [sorted, order] =
      experts.flatten().sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const std::int64_t k = experts.size(1);
  const at::Tensor place =
      at::empty_like(order).scatter_(0, order, at::arange(order.size(0), order.options()));
  const at::Tensor ends = at::searchsorted(sorted, at::arange(num_experts, order.options()),
                                           /*out_int32=*/true, /*right=*/true);
  return {order.floor_divide(k), place.view(experts.sizes()), ends};
}

// The products of all experts, each with its own slice of rows.
class GroupedProducts {
 public:
  // `weights` in the dtype of the parameters; `rows` are the sorted activations of some width.
  GroupedProducts(const at::Tensor& rows, const at::Tensor& ends, at::TensorList weights)
      : ends_(ends), native_(has_native_bf16_products(rows.device())) {
    grouped_ = rows.is_cuda() && rows.scalar_type() == at::kBFloat16;
    for (const at::Tensor& weight : weights)
      grouped_ = grouped_ && weight.size(1) % kAligned == 0 && weight.size(2) % kAligned == 0;
    if (grouped_) return;
    const at::Tensor host = ends.to(at::kCPU, at::kLong);
    const auto span = host_span(host);
    host_ends_.assign(span.begin(), span.end());
  }

  // [rows,in] x [E,out,in] -> [rows,out]
  at::Tensor forward(const at::Tensor& rows, const at::Tensor& weight) const {
    if (grouped_) {
      return at::_grouped_mm(rows, weight.to(rows.scalar_type()).transpose(1, 2), ends_);
    }
    const at::Tensor out = at::empty({rows.size(0), weight.size(1)}, rows.options());
    const at::Tensor narrow = in_product_type(weight, rows.scalar_type());
    for_each_expert([&](std::int64_t e, std::int64_t begin, std::int64_t count) {
      out.narrow(0, begin, count)
          .copy_(product_forward(rows.narrow(0, begin, count), narrow.select(0, e)));
    });
    return out;
  }

  // [rows,out] x [E,out,in] -> [rows,in]
  at::Tensor input_gradient(const at::Tensor& dy, const at::Tensor& weight) const {
    if (grouped_) return at::_grouped_mm(dy, weight.to(dy.scalar_type()), ends_);
    const at::Tensor out = at::empty({dy.size(0), weight.size(2)}, dy.options());
    const at::Tensor narrow = in_product_type(weight, dy.scalar_type());
    for_each_expert([&](std::int64_t e, std::int64_t begin, std::int64_t count) {
      out.narrow(0, begin, count)
          .copy_(product_input_gradient(dy.narrow(0, begin, count), narrow.select(0, e)));
    });
    return out;
  }

  // [rows,out]^T x [rows,in] -> [E,out,in] in the type of the parameters
  at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& rows,
                             const at::Tensor& weight) const {
    if (grouped_) {
      at::Tensor out = at::_grouped_mm(dy.t(), rows, ends_).to(weight.scalar_type());
      // An empty slice has no product; its result is not worth trusting.
      const at::Tensor begins =
          at::cat({at::zeros({1}, ends_.options()), ends_.narrow(0, 0, ends_.size(0) - 1)});
      return out.masked_fill_(begins.eq(ends_).view({-1, 1, 1}), 0);
    }
    const at::Tensor out = at::zeros(weight.sizes(), weight.options().requires_grad(false));
    for_each_expert([&](std::int64_t e, std::int64_t begin, std::int64_t count) {
      out.select(0, e).copy_(
          product_weight_gradient(dy.narrow(0, begin, count), rows.narrow(0, begin, count)));
    });
    return out;
  }

 private:
  static constexpr std::int64_t kAligned = 8;  // bf16 elements in 16 bytes

  // Once for all experts, where products are in the activations' type.
  at::Tensor in_product_type(const at::Tensor& weight, at::ScalarType type) const {
    return native_ && type != weight.scalar_type() && !weight.is_cpu() ? weight.to(type) : weight;
  }

  template <class F>
  void for_each_expert(F&& f) const {
    std::int64_t begin = 0;
    for (std::size_t e = 0; e < host_ends_.size(); ++e) {
      const std::int64_t end = host_ends_[e];
      if (end > begin) f(static_cast<std::int64_t>(e), begin, end - begin);
      begin = end;
    }
  }

  at::Tensor ends_;
  bool native_;
  bool grouped_ = false;
  std::vector<std::int64_t> host_ends_;
};

// sum_j x[place_tj] [tokens,l] in f32 (f64), in the order of the choices; with weights, weighted.
at::Tensor gather_sum(const at::Tensor& x, const at::Tensor& place,
                      const at::Tensor& weights = {}) {
  const at::ScalarType island = island_type_of(x.scalar_type());
  at::Tensor sum;
  for (std::int64_t j = 0; j < place.size(1); ++j) {
    at::Tensor part = x.index_select(0, place.select(1, j)).to(island);
    if (weights.defined()) part = part.mul_(weights.narrow(1, j, 1));
    sum = sum.defined() ? sum.add_(part) : part;
  }
  return sum;
}

struct ExpertSumFunction : torch::autograd::Function<ExpertSumFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& z, const at::Tensor& weights,
                            const at::Tensor& experts, const at::Tensor& gate_up,
                            const at::Tensor& down, const Activation& activation) {
    const Sorted sorted = sort_by_expert(experts, gate_up.size(0));
    const at::Tensor rows = z.index_select(0, sorted.token);
    const GroupedProducts products(rows, sorted.ends, {gate_up, down});
    const at::Tensor both = products.forward(rows, gate_up);
    const std::int64_t width = down.size(2);
    const at::Tensor inner = gated_activation_forward(both.narrow(1, 0, width),
                                                      both.narrow(1, width, width), activation);
    ctx->save_for_backward(
        {z, weights, gate_up, down, both, sorted.token, sorted.place, sorted.ends});
    ctx->saved_data["kind"] = static_cast<std::int64_t>(activation.kind);
    ctx->saved_data["beta"] = activation.situ_beta;
    ctx->saved_data["linear_beta"] = activation.situ_linear_beta;
    return gather_sum(products.forward(inner, down), sorted.place, weights);
  }

  // With o = W2 a, a = act(both): <o, du> = <a, W2^T du>, so o is not needed for the gradient of
  // the weights p, and dW2 = du^T (p a).
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& z = saved[0];
    const at::Tensor& weights = saved[1];
    const at::Tensor& gate_up = saved[2];
    const at::Tensor& down = saved[3];
    const at::Tensor& both = saved[4];
    const at::Tensor& token = saved[5];
    const at::Tensor& place = saved[6];
    const Activation activation{static_cast<ActivationKind>(ctx->saved_data["kind"].toInt()),
                                ctx->saved_data["beta"].toDouble(),
                                ctx->saved_data["linear_beta"].toDouble()};
    const at::ScalarType narrow = z.scalar_type();
    const at::ScalarType island = weights.scalar_type();
    const std::int64_t width = down.size(2);
    const at::Tensor gate = both.narrow(1, 0, width);
    const at::Tensor up = both.narrow(1, width, width);
    const at::Tensor inner = gated_activation_forward(gate, up, activation);
    const GroupedProducts products(both, saved[7], {gate_up, down});

    const at::Tensor du = grads[0].to(narrow).index_select(0, token);
    const at::Tensor dinner = products.input_gradient(du, down);
    const at::Tensor share = at::empty_like(weights)
                                 .flatten()
                                 .scatter_(0, place.flatten(), weights.flatten())
                                 .unsqueeze(1);  // p of each sorted row
    const at::Tensor dboth =
        gated_activation_backward(gate, up, (dinner.to(island) * share).to(narrow), activation);

    variable_list result(6);
    if (ctx->needs_input_grad(0)) {
      result[0] = gather_sum(products.input_gradient(dboth, gate_up), place).to(narrow);
    }
    if (ctx->needs_input_grad(1)) {
      const at::Tensor dots = (inner.to(island) * dinner.to(island)).sum(-1);
      result[1] = dots.index_select(0, place.flatten()).view(place.sizes());
    }
    if (ctx->needs_input_grad(3)) {
      result[3] = products.weight_gradient(dboth, z.index_select(0, token), gate_up);
    }
    if (ctx->needs_input_grad(4)) {
      const at::Tensor weighted = (inner.to(island) * share).to(narrow);
      result[4] = products.weight_gradient(du, weighted, down);
    }
    return result;
  }
};

}  // namespace

at::Tensor expert_sum(const at::Tensor& z, const at::Tensor& weights, const at::Tensor& experts,
                      const at::Tensor& gate_up, const at::Tensor& down,
                      const Activation& activation) {
  const auto run = [](const auto&... args) { return ExpertSumFunction::apply(args...); };
  return observed("expert_sum", run, arg("z", z), arg("weights", weights), arg("experts", experts),
                  arg("gate_up", gate_up), arg("down", down), arg("activation", activation));
}

}  // namespace kda::model
