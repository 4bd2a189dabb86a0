#include "model/block.h"

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/new_parameter.h"
#include "model/rms_norm.h"
#include "model/tensors.h"

namespace kda::model {

at::Tensor Residual::sum() const {
  return delta.defined() ? base + delta.to(base.scalar_type()) : base;
}

Block::Block(const KDAConfig& config, const LayerOptions& layer)
    : norm_eps_(config.norm_eps),
      activation_(layer.activation),
      input_norm_(new_parameter({config.hidden_size}, layer.tensors)),
      post_attention_norm_(new_parameter({config.hidden_size}, layer.tensors)),
      attention_(config, layer) {
  const auto inputs = new_neighbours({config.intermediate_size, config.intermediate_size},
                                     config.hidden_size, layer.tensors);
  mlp_ = {inputs[0], inputs[1],
          new_parameter({config.hidden_size, config.intermediate_size}, layer.tensors)};
}

Residual Block::forward(const Residual& input, const Sequences& sequences, const LayerCache& cache,
                        const BlockObserver* observer) const {
  const NormedSum before =
      add_rms_norm(input.base, input.delta, input_norm_, norm_eps_, activation_);
  const at::Tensor attended = cache.state != nullptr
                                  ? attention_.forward_cached(before.normed, sequences, cache)
                                  : attention_.forward(before.normed, sequences);
  if (observer != nullptr) (*observer)("attn", attended);
  const NormedSum between =
      add_rms_norm(before.sum, attended, post_attention_norm_, norm_eps_, activation_);
  const at::Tensor fed = mlp_.forward(between.normed);
  if (observer != nullptr) (*observer)("mlp", fed);
  return {between.sum, fed};
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RecomputedBlock : torch::autograd::Function<RecomputedBlock> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& base,
                               const std::optional<at::Tensor>& delta_in, const Block* block,
                               const Sequences& sequences) {
    const at::Tensor delta = delta_in.value_or(at::Tensor());
    const Residual out = block->forward({base, delta}, sequences, {}, nullptr);
    ctx->save_for_backward({base, delta, sequences.cu_host});
    ctx->saved_data["block"] = reinterpret_cast<std::int64_t>(block);
    ctx->set_materialize_grads(false);
    return {out.base, out.delta};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto* block = reinterpret_cast<const Block*>(ctx->saved_data["block"].toInt());
    const c10::AutoGradMode with_grad(true);
    const auto leaf = [](const at::Tensor& tensor) {
      if (!tensor.defined()) return at::Tensor();
      at::Tensor copy = tensor.detach();
      copy.set_requires_grad(true);
      return copy;
    };
    const at::Tensor base = leaf(saved[0]);
    const at::Tensor delta = leaf(saved[1]);
    const Residual out =
        block->forward({base, delta}, Sequences(saved[2], saved[0].device()), {}, nullptr);
    variable_list roots;
    variable_list root_grads;
    for (const auto& [root, grad] :
         {std::pair(out.base, grads[0]), std::pair(out.delta, grads[1])}) {
      if (!grad.defined()) continue;
      roots.push_back(root);
      root_grads.push_back(grad);
    }
    if (!roots.empty()) torch::autograd::backward(roots, root_grads);
    return {base.grad(), delta.defined() ? delta.grad() : at::Tensor(), {}, {}};
  }
};

}  // namespace

Residual Block::forward_recomputed(const Residual& input, const Sequences& sequences) const {
  const variable_list out = RecomputedBlock::apply(input.base, given(input.delta), this, sequences);
  return {out[0], out[1]};
}

void Block::collect(const std::string& prefix, std::vector<Parameter>& parameters) const {
  using Kind = ParameterKind;
  parameters.push_back({prefix + "input_layernorm.weight", input_norm_, Kind::kNorm});
  attention_.collect(prefix + "self_attn.", parameters);
  parameters.push_back(
      {prefix + "post_attention_layernorm.weight", post_attention_norm_, Kind::kNorm});
  parameters.push_back({prefix + "mlp.gate_proj.weight", mlp_.gate_proj, Kind::kMatrix});
  parameters.push_back({prefix + "mlp.up_proj.weight", mlp_.up_proj, Kind::kMatrix});
  parameters.push_back({prefix + "mlp.down_proj.weight", mlp_.down_proj, Kind::kMatrix});
}

}  // namespace kda::model
