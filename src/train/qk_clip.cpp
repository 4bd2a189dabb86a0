#include "train/qk_clip.h"

#include <ATen/ops/maximum.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <string>

#include "kda/error.h"

namespace kda::train {
namespace {

at::Tensor weight_of(const std::vector<model::Parameter>& parameters, const std::string& name) {
  for (const model::Parameter& p : parameters) {
    if (p.name == name) return p.tensor.detach();
  }
  throw Error(ErrorCode::kInternal, "qk-clip: the model has no parameter " + name);
}

}  // namespace

QkClip::QkClip(const model::KDAConfig& config, const std::vector<model::Parameter>& parameters,
               double tau)
    : mla_(config.mla), tau_(tau) {
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    if (!config.is_mla(i)) continue;
    const std::string prefix = "model.layers." + std::to_string(i) + ".self_attn.";
    const char* query = mla_.q_lora_rank > 0 ? "q_b_proj.weight" : "q_proj.weight";
    layers_.push_back({i,
                       weight_of(parameters, prefix + query),
                       weight_of(parameters, prefix + "kv_b_proj.weight"),
                       {}});
  }
}

void QkClip::observe(const std::vector<model::LargestLogits>& largest) {
  const c10::NoGradGuard no_grad;
  for (const model::LargestLogits& seen : largest) {
    const auto at = std::find_if(layers_.begin(), layers_.end(),
                                 [&](const Layer& layer) { return layer.index == seen.layer; });
    if (at == layers_.end()) continue;
    const at::Tensor logits = seen.logits.detach();
    at->largest = at->largest.defined() ? at::maximum(at->largest, logits) : logits;
  }
}

void QkClip::apply() {
  const c10::NoGradGuard no_grad;
  const std::int64_t n = mla_.qk_nope_head_dim;
  const std::int64_t r = mla_.qk_rope_head_dim;
  for (Layer& layer : layers_) {
    if (!layer.largest.defined()) continue;
    // tau / S where S > tau, else 1: no head needs to be asked, so nothing waits for the device.
    const at::Tensor gamma =
        layer.largest.clamp_min(tau_).reciprocal().mul(tau_).view({mla_.num_heads, 1, 1});
    const at::Tensor root = gamma.sqrt();
    const at::Tensor query = layer.query.view({mla_.num_heads, n + r, -1});
    const at::Tensor kv_b = layer.kv_b.view({mla_.num_heads, n + mla_.v_head_dim, -1});
    query.narrow(1, 0, n).mul_(root);
    kv_b.narrow(1, 0, n).mul_(root);
    if (r > 0) query.narrow(1, n, r).mul_(gamma);
    layer.largest = at::Tensor();
  }
}

void QkClip::discard() {
  for (Layer& layer : layers_)
    layer.largest = at::Tensor();
}

}  // namespace kda::train
