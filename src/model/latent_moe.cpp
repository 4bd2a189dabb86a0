#include "model/latent_moe.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include "kda/error.h"
#include "model/experts.h"
#include "model/linear.h"
#include "model/observe.h"
#include "model/rms_norm.h"
#include "model/router.h"
#include "model/tensors.h"

namespace kda::model {

LatentMoe::LatentMoe(const MoeConfig& config, std::int64_t hidden_size,
                     const Activation& activation, double norm_eps, const LayerOptions& layer)
    : config_(config),
      activation_(activation),
      norm_eps_(norm_eps),
      compute_(layer.activation),
      router_(new_parameter({config.num_experts, hidden_size}, layer.tensors)),
      selection_bias_(at::zeros({config.num_experts}, layer.tensors.requires_grad(false))) {
  const std::int64_t inner = config.intermediate_size;
  const std::int64_t width = config.expert_input(hidden_size);
  gate_up_ = new_parameter({config.num_experts, 2 * inner, width}, layer.tensors);
  down_ = new_parameter({config.num_experts, width, inner}, layer.tensors);
  if (config.latent_size > 0) {
    latent_down_ = new_parameter({width, hidden_size}, layer.tensors);
    latent_up_ = new_parameter({hidden_size, width}, layer.tensors);
  }
  if (config.latent_norm) latent_norm_ = new_parameter({width}, layer.tensors);
  if (config.num_shared_experts > 0) {
    shared_.emplace(hidden_size, config.shared_width(), activation, layer);
  }
}

at::Tensor LatentMoe::forward(const at::Tensor& x, RoutingStatistics* statistics,
                              const at::Tensor& counted) const {
  const Routing routing =
      in_module("gate", [&] { return route(x, router_, selection_bias_, config_); });
  if (statistics != nullptr) {
    const BalanceKind kind = statistics->options().kind;
    const bool quantile = kind == BalanceKind::kQuantile || kind == BalanceKind::kQuantileHistogram;
    if (quantile && config_.topk_groups < config_.num_groups) {
      throw Error(ErrorCode::kUnsupported,
                  std::string("balance: ") + name_of(kind) +
                      " needs a choice among all experts, the config limits it to groups; "
                      "supported with groups: sign, none");
    }
    statistics->add(routing, selection_bias_, counted);
  }
  const at::Tensor z =
      latent_down_.defined()
          ? in_module("routed_expert_down_proj", [&] { return linear_one(x, latent_down_); })
          : x;
  at::Tensor routed = in_module("experts", [&] {
    return expert_sum(z, routing.weights, routing.experts, gate_up_, down_, activation_);
  });
  if (latent_norm_.defined()) {
    routed = in_module("routed_expert_norm", [&] {
      return add_rms_norm(routed, {}, latent_norm_, norm_eps_, compute_).normed;
    });
  } else {
    routed = routed.to(x.scalar_type());
  }
  if (latent_up_.defined()) {
    routed = in_module("routed_expert_up_proj", [&] { return linear_one(routed, latent_up_); });
  }
  if (!shared_) return routed;
  return in_module("shared_experts", [&] { return shared_->forward(x); }) + routed;
}

void LatentMoe::collect(const std::string& prefix, std::vector<Parameter>& parameters) const {
  using Kind = ParameterKind;
  parameters.push_back({prefix + "gate.weight", router_, Kind::kMatrix});
  parameters.push_back({prefix + "experts.gate_up_proj", gate_up_, Kind::kExperts});
  parameters.push_back({prefix + "experts.down_proj", down_, Kind::kExperts});
  if (latent_down_.defined()) {
    parameters.push_back({prefix + "routed_expert_down_proj.weight", latent_down_, Kind::kMatrix});
    parameters.push_back({prefix + "routed_expert_up_proj.weight", latent_up_, Kind::kMatrix});
  }
  if (latent_norm_.defined()) {
    parameters.push_back({prefix + "routed_expert_norm.weight", latent_norm_, Kind::kNorm});
  }
  if (shared_) shared_->collect(prefix + "shared_experts.", parameters);
}

void LatentMoe::collect_buffers(const std::string& prefix, std::vector<Parameter>& buffers) const {
  buffers.push_back(
      {prefix + "gate.e_score_correction_bias", selection_bias_, ParameterKind::kRoutingBias});
}

}  // namespace kda::model
