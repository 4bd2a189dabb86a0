#include "model/router.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>

#include "model/linear.h"
#include "model/observe.h"
#include "model/tensors.h"

namespace kda::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr double kTiny = 1e-20;

// Experts outside the best groups lose: -infinity, or 0 where the released code is reproduced.
at::Tensor inside_best_groups(const at::Tensor& choice, const MoeConfig& config) {
  if (config.num_groups <= 1 || config.topk_groups >= config.num_groups) return choice;
  const std::int64_t per_group = choice.size(1) / config.num_groups;
  const at::Tensor grouped = choice.view({choice.size(0), config.num_groups, per_group});
  const at::Tensor rank =
      std::get<0>(grouped.topk(std::min<std::int64_t>(2, per_group), -1)).sum(-1);
  const at::Tensor best = std::get<1>(rank.topk(config.topk_groups, -1));
  const double masked =
      config.weights_include_bias ? 0.0 : -std::numeric_limits<double>::infinity();
  const at::Tensor kept =
      at::zeros(rank.sizes(), rank.options().dtype(at::kBool)).scatter_(1, best, true);
  return grouped.masked_fill(kept.logical_not().unsqueeze(-1), masked).view(choice.sizes());
}

struct RouteFunction : torch::autograd::Function<RouteFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, const MoeConfig& config) {
    const at::Tensor wide = x.to(weight.scalar_type());
    const at::Tensor scores = at::sigmoid(product_forward(wide, weight));
    const at::Tensor biased = scores + bias;
    const std::int64_t k = config.num_experts_per_token;
    const bool has_threshold = k < scores.size(1);
    const auto [values, indices] =
        inside_best_groups(biased, config).topk(has_threshold ? k + 1 : k, -1);
    const at::Tensor experts = indices.narrow(1, 0, k).contiguous();
    const at::Tensor threshold =
        has_threshold ? values.select(1, k).contiguous() : at::zeros({0}, scores.options());
    const at::Tensor chosen = (config.weights_include_bias ? biased : scores).gather(1, experts);
    // One expert's renormalised weight would be 1 whatever its score; released code leaves it
    // alone.
    const bool renormalise = config.renormalize && k > 1;
    at::Tensor weights = chosen;
    at::Tensor inverse;
    if (renormalise) {
      inverse = (chosen.sum(-1, /*keepdim=*/true) + kTiny).reciprocal();
      weights = chosen * inverse;
    }
    const at::Tensor scaled = weights * config.routed_scaling_factor;
    ctx->save_for_backward({wide, weight, scores, experts, weights, inverse});
    ctx->saved_data["scaling"] = config.routed_scaling_factor;
    ctx->saved_data["activation"] = static_cast<std::int64_t>(x.scalar_type());
    ctx->mark_non_differentiable({experts, scores, threshold});
    return {scaled, experts, scores, threshold};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& wide = saved[0];
    const at::Tensor& scores = saved[2];
    const at::Tensor& experts = saved[3];
    const at::Tensor& shares = saved[4];
    const at::Tensor& inverse = saved[5];
    at::Tensor dchosen = grads[0] * ctx->saved_data["scaling"].toDouble();
    if (inverse.defined()) {
      dchosen = inverse * (dchosen - (dchosen * shares).sum(-1, /*keepdim=*/true));
    }
    const at::Tensor s = scores.gather(1, experts);
    const at::Tensor dlogits =
        at::zeros(scores.sizes(), scores.options()).scatter_(1, experts, dchosen * s * (1 - s));
    variable_list result(4);
    if (ctx->needs_input_grad(0)) {
      result[0] = product_input_gradient(dlogits, saved[1])
                      .to(static_cast<at::ScalarType>(ctx->saved_data["activation"].toInt()));
    }
    if (ctx->needs_input_grad(1)) result[1] = product_weight_gradient(dlogits, wide);
    return result;
  }
};

}  // namespace

namespace {

Routing route_now(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  const MoeConfig& config) {
  const variable_list out = RouteFunction::apply(x, weight, bias, config);
  Routing routing{out[0], out[1], out[2], {}};
  if (out[3].numel() == out[0].size(0)) routing.threshold = out[3];
  return routing;
}

}  // namespace

Routing route(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
              const MoeConfig& config) {
  return observed("route", route_now, arg("x", x), arg("weight", weight), arg("bias", bias),
                  arg("config", config));
}

}  // namespace kda::model
