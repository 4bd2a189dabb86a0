#include "model/block.h"

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/new_parameter.h"
#include "model/observe.h"
#include "model/tensors.h"

namespace kda::model {
namespace {

std::variant<KdaAttention, GatedMla> make_attention(const KDAConfig& config, std::int64_t index,
                                                    const LayerOptions& layer) {
  if (config.is_mla(index)) return GatedMla(config.mla, config.hidden_size, layer);
  return KdaAttention(config, layer);
}

std::variant<GatedMlp, LatentMoe> make_feed_forward(const KDAConfig& config, std::int64_t index,
                                                    const LayerOptions& layer) {
  if (config.is_moe(index)) {
    return LatentMoe(config.moe, config.hidden_size, config.activation, config.norm_eps, layer);
  }
  return GatedMlp(config.hidden_size, config.intermediate_size, config.activation, layer);
}

bool starts_attn_res_block(const KDAConfig& config, std::int64_t index) {
  switch (config.attn_res.mode) {
    case AttnResMode::kOff:
      return false;
    case AttnResMode::kBlock:
      return index % config.attn_res.layers_per_block(config.num_layers) == 0;
    case AttnResMode::kFull:
      return true;
  }
  return false;
}

// The running source after one more output; x undefined: it starts anew. Sources are f32 (f64): of
// mixed types each mixture would make and keep its own wide copies.
at::Tensor running_sum(const at::Tensor& x, const at::Tensor& output) {
  if (x.defined()) return x + output;
  return output.to(island_type_of(output.scalar_type()));
}

std::vector<at::Tensor> with(std::vector<at::Tensor> sources, const at::Tensor& running) {
  sources.push_back(running);
  return sources;
}

}  // namespace

at::Tensor Residual::sum() const {
  return delta.defined() ? base + delta.to(base.scalar_type()) : base;
}

Block::Block(const KDAConfig& config, std::int64_t index, const LayerOptions& layer)
    : norm_eps_(config.norm_eps),
      activation_(layer.activation),
      mode_(config.attn_res.mode),
      starts_block_(starts_attn_res_block(config, index)),
      input_norm_(new_parameter({config.hidden_size}, layer.tensors)),
      post_attention_norm_(new_parameter({config.hidden_size}, layer.tensors)),
      attention_(make_attention(config, index, layer)),
      feed_forward_(make_feed_forward(config, index, layer)) {
  if (config.attn_res.enabled()) {
    attention_res_ = AttnResWeights::make(config.hidden_size, layer);
    mlp_res_ = AttnResWeights::make(config.hidden_size, layer);
  }
}

at::Tensor Block::attend(const at::Tensor& x, const Sequences& sequences,
                         const BlockCall& call) const {
  if (call.largest_logits != nullptr && mla() != nullptr) {
    *call.largest_logits = mla()->largest_logits(x, sequences);
  }
  const auto run = [&](const auto& attention) {
    return call.cache.state != nullptr ? attention.forward_cached(x, sequences, call.cache)
                                       : attention.forward(x, sequences);
  };
  const at::Tensor y = in_module("self_attn", [&] { return std::visit(run, attention_); });
  if (call.observer != nullptr) (*call.observer)("attn", y);
  return y;
}

at::Tensor Block::feed(const at::Tensor& x, const BlockCall& call) const {
  const LatentMoe* experts = moe();
  const at::Tensor y = in_module(experts != nullptr ? "block_sparse_moe" : "mlp", [&] {
    return experts != nullptr ? experts->forward(x, call.statistics)
                              : std::get<GatedMlp>(feed_forward_).forward(x);
  });
  if (call.observer != nullptr) (*call.observer)("mlp", y);
  return y;
}

NormedSum Block::input_normed(const at::Tensor& h, const at::Tensor& delta) const {
  return in_module("input_layernorm",
                   [&] { return add_rms_norm(h, delta, input_norm_, norm_eps_, activation_); });
}

NormedSum Block::post_attention_normed(const at::Tensor& h, const at::Tensor& delta) const {
  return in_module("post_attention_layernorm", [&] {
    return add_rms_norm(h, delta, post_attention_norm_, norm_eps_, activation_);
  });
}

Depth Block::forward(const Depth& input, const Sequences& sequences, const BlockCall& call) const {
  return mode_ == AttnResMode::kOff ? forward_plain(input, sequences, call)
                                    : forward_attn_res(input, sequences, call);
}

Depth Block::forward_plain(const Depth& input, const Sequences& sequences,
                           const BlockCall& call) const {
  const NormedSum before = input_normed(input.residual.base, input.residual.delta);
  const at::Tensor attended = attend(before.normed, sequences, call);
  const NormedSum between = post_attention_normed(before.sum, attended);
  return {{between.sum, feed(between.normed, call)}, {}};
}

Depth Block::forward_attn_res(const Depth& input, const Sequences& sequences,
                              const BlockCall& call) const {
  at::Tensor x = input.residual.base;
  std::vector<at::Tensor> sources = input.sources;
  const auto mixed = [&](const char* place, const AttnResWeights& weights) {
    return in_module(
        place, [&] { return attn_res(with(sources, x), weights.gain, weights.query, norm_eps_); });
  };
  at::Tensor h = sources.empty() ? x : mixed("self_attention_res", *attention_res_);
  if (starts_block_) {
    sources.push_back(x);
    x.reset();
  }
  x = running_sum(x, attend(input_normed(h, {}).normed, sequences, call));
  h = mixed("mlp_res", *mlp_res_);
  if (mode_ == AttnResMode::kFull) {
    sources.push_back(x);
    x.reset();
  }
  x = running_sum(x, feed(post_attention_normed(h, {}).normed, call));
  return {{x, {}}, sources};
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A depth as a list of tensors for an autograd function. What a block returns: its residual and,
// in mode full, the source made inside it; a source that was the input is the caller's already.
variable_list flat(const Residual& residual) {
  variable_list list{residual.base};
  if (residual.delta.defined()) list.push_back(residual.delta);
  return list;
}

struct RecomputedBlock : torch::autograd::Function<RecomputedBlock> {
  // `inputs`: base, delta if any, sources.
  static variable_list forward(AutogradContext* ctx, at::TensorList inputs, const Block* block,
                               const Sequences& sequences, bool has_delta, bool makes_source,
                               const BlockCall& call) {
    variable_list saved(inputs.begin(), inputs.end());
    const Depth out = block->forward(unflat(saved, has_delta), sequences, call);
    saved.insert(saved.end(), {sequences.cu_host, sequences.cu_device, sequences.cu_i32});
    ctx->save_for_backward(saved);
    ctx->saved_data["block"] = reinterpret_cast<std::int64_t>(block);
    ctx->saved_data["has_delta"] = has_delta;
    ctx->saved_data["makes_source"] = makes_source;
    ctx->set_materialize_grads(false);
    return outputs_of(out, makes_source);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list saved = ctx->get_saved_variables();
    const std::size_t count = saved.size() - 3;
    Sequences sequences(saved[count], c10::kCPU);
    sequences.cu_device = saved[count + 1];
    sequences.cu_i32 = saved[count + 2];
    saved.resize(count);
    const auto* block = reinterpret_cast<const Block*>(ctx->saved_data["block"].toInt());
    const c10::AutoGradMode with_grad(true);
    for (at::Tensor& tensor : saved) {
      tensor = tensor.detach();
      tensor.set_requires_grad(true);
    }
    const Depth out =
        block->forward(unflat(saved, ctx->saved_data["has_delta"].toBool()), sequences, {});
    const variable_list outputs = outputs_of(out, ctx->saved_data["makes_source"].toBool());
    variable_list roots;
    variable_list root_grads;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!grads[i].defined()) continue;
      roots.push_back(outputs[i]);
      root_grads.push_back(grads[i]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, root_grads);
    variable_list result;
    for (const at::Tensor& tensor : saved)
      result.push_back(tensor.grad());
    result.resize(saved.size() + 5);
    return result;
  }

 private:
  static Depth unflat(const variable_list& list, bool has_delta) {
    const std::size_t first = has_delta ? 2 : 1;
    return {{list[0], has_delta ? list[1] : at::Tensor()},
            {list.begin() + static_cast<std::ptrdiff_t>(first), list.end()}};
  }

  static variable_list outputs_of(const Depth& out, bool makes_source) {
    variable_list list = flat(out.residual);
    if (makes_source) list.push_back(out.sources.back());
    return list;
  }
};

}  // namespace

Depth Block::forward_recomputed(const Depth& input, const Sequences& sequences,
                                const BlockCall& call) const {
  const bool makes_source = mode_ == AttnResMode::kFull;
  variable_list inputs = flat(input.residual);
  inputs.insert(inputs.end(), input.sources.begin(), input.sources.end());
  const variable_list out = RecomputedBlock::apply(
      at::TensorList(inputs), this, sequences, input.residual.delta.defined(), makes_source, call);
  Depth result{{out[0], {}}, input.sources};
  if (mode_ == AttnResMode::kOff) result.residual.delta = out[1];
  if (starts_block_) result.sources.push_back(input.residual.base);
  if (makes_source) result.sources.push_back(out.back());
  return result;
}

void Block::collect(const std::string& prefix, std::vector<Parameter>& parameters) const {
  using Kind = ParameterKind;
  if (attention_res_) attention_res_->collect(prefix + "self_attention_res", parameters);
  parameters.push_back({prefix + "input_layernorm.weight", input_norm_, Kind::kNorm});
  std::visit([&](const auto& attention) { attention.collect(prefix + "self_attn.", parameters); },
             attention_);
  if (mlp_res_) mlp_res_->collect(prefix + "mlp_res", parameters);
  parameters.push_back(
      {prefix + "post_attention_layernorm.weight", post_attention_norm_, Kind::kNorm});
  if (const LatentMoe* experts = moe()) {
    experts->collect(prefix + "block_sparse_moe.", parameters);
  } else {
    std::get<GatedMlp>(feed_forward_).collect(prefix + "mlp.", parameters);
  }
}

void Block::collect_buffers(const std::string& prefix, std::vector<Parameter>& buffers) const {
  if (const LatentMoe* experts = moe()) {
    experts->collect_buffers(prefix + "block_sparse_moe.", buffers);
  }
}

LayerState Block::new_state(std::int64_t num_rows) const {
  return std::visit([&](const auto& attention) { return attention.new_state(num_rows); },
                    attention_);
}

}  // namespace kda::model
