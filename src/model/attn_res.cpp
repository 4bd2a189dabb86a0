#include "model/attn_res.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/max.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "kda/error.h"
#include "model/device.h"
#include "model/device_kernels.h"
#include "model/kernels/attn_res.h"
#include "model/observe.h"
#include "model/tensors.h"

namespace kda::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor inverse_rms(const at::Tensor& wide, double eps) {
  return at::rsqrt((wide * wide).mean(-1, /*keepdim=*/true) + eps);
}

// Rows of unit stride in one type: f32 when f32 and bf16 sources meet.
std::vector<at::Tensor> rows_of(at::TensorList sources) {
  if (sources.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "sources: expected at least one, got none");
  }
  const bool uniform = std::all_of(sources.begin(), sources.end(), [&](const at::Tensor& source) {
    return source.scalar_type() == sources.front().scalar_type();
  });
  std::vector<at::Tensor> rows;
  for (const at::Tensor& source : sources) {
    if (source.dim() != 2 || source.sizes() != sources.front().sizes()) {
      throw Error(ErrorCode::kInvalidArgument, "sources: expected [tokens,d] like the first, " +
                                                   shape_text(sources.front()) + ", got " +
                                                   shape_text(source));
    }
    rows.push_back((uniform ? source : source.to(at::kFloat)).contiguous());
  }
  return rows;
}

AttnResForward arguments(const std::vector<at::Tensor>& sources, const at::Tensor& gain,
                         const at::Tensor& query, double eps) {
  AttnResForward args;
  args.storage = dtype_of(sources.front());
  args.rows = sources.front().size(0);
  args.width = sources.front().size(1);
  args.eps = eps;
  for (const at::Tensor& source : sources)
    args.sources.push_back(source.const_data_ptr());
  args.gain = gain.const_data_ptr();
  args.query = query.const_data_ptr();
  return args;
}

bool fused(const std::vector<at::Tensor>& sources) {
  return has_kernels(sources.front()) &&
         (sources.front().is_cpu() || sources.size() <= kDeviceMaxSources);
}

DeviceAttnRes on_device(const AttnResForward& args, const at::Tensor& gain) {
  DeviceAttnRes out;
  out.storage = args.storage;
  out.stream = current_stream(gain);
  out.rows = args.rows;
  out.width = args.width;
  out.count = static_cast<int>(args.sources.size());
  out.eps = static_cast<float>(args.eps);
  std::copy(args.sources.begin(), args.sources.end(), out.sources);
  out.gain = static_cast<const float*>(args.gain);
  out.query = static_cast<const float*>(args.query);
  out.logits = static_cast<float*>(args.logits);
  out.scales = static_cast<float*>(args.scales);
  out.h = static_cast<float*>(args.h);
  return out;
}

void backward_on_device(const AttnResBackward& args, const at::Tensor& gain) {
  DeviceAttnRes out = on_device(args.forward, gain);
  out.dh = static_cast<const float*>(args.dh);
  std::copy(args.dsources.begin(), args.dsources.end(), out.dsources);
  out.pulled = static_cast<float*>(args.pulled);
  const at::Tensor partial =
      at::empty({kDevicePartialRows, args.forward.width}, gain.options().requires_grad(false));
  out.partial = partial.mutable_data_ptr<float>();
  device_kernels().attn_res_backward(out);
}

// Outputs h, logits and inverse rms, the last two [tokens,M].
variable_list forward_by_torch(const std::vector<at::Tensor>& sources, const at::Tensor& gain,
                               const at::Tensor& query, double eps) {
  const at::ScalarType island = gain.scalar_type();
  const at::Tensor direction = gain * query.flatten();
  std::vector<at::Tensor> logits;
  std::vector<at::Tensor> scales;
  for (const at::Tensor& source : sources) {
    const at::Tensor wide = source.to(island);
    scales.push_back(inverse_rms(wide, eps));
    logits.push_back((wide * direction).sum(-1, /*keepdim=*/true) * scales.back());
  }
  const at::Tensor joined_logits = at::cat(logits, 1);
  const at::Tensor p = at::softmax(joined_logits, 1);
  at::Tensor h = sources.front().to(island) * p.narrow(1, 0, 1);
  for (std::size_t i = 1; i < sources.size(); ++i)
    h.addcmul_(sources[i].to(island), p.narrow(1, static_cast<std::int64_t>(i), 1));
  return {h, joined_logits, at::cat(scales, 1)};
}

struct AttnResFunction : torch::autograd::Function<AttnResFunction> {
  static at::Tensor forward(AutogradContext* ctx, at::TensorList sources_in, const at::Tensor& gain,
                            const at::Tensor& query, double eps) {
    const std::vector<at::Tensor> sources = rows_of(sources_in);
    variable_list saved(sources.begin(), sources.end());
    std::vector<std::int64_t> types;
    for (const at::Tensor& source : sources_in)
      types.push_back(static_cast<std::int64_t>(source.scalar_type()));
    at::Tensor h;
    at::Tensor logits;
    at::Tensor scales;
    if (fused(sources)) {
      const auto wide = gain.options().requires_grad(false);
      const auto count = static_cast<std::int64_t>(sources.size());
      h = at::empty(sources.front().sizes(), wide);
      logits = at::empty({h.size(0), count}, wide);
      scales = at::empty_like(logits);
      AttnResForward args = arguments(sources, gain, query, eps);
      args.logits = logits.mutable_data_ptr();
      args.scales = scales.mutable_data_ptr();
      args.h = h.mutable_data_ptr();
      gain.is_cpu() ? attn_res_forward(args)
                    : device_kernels().attn_res_forward(on_device(args, gain));
    } else {
      const variable_list out = forward_by_torch(sources, gain, query, eps);
      h = out[0];
      logits = out[1];
      scales = out[2];
    }
    saved.insert(saved.end(), {gain, query, logits, scales});
    ctx->save_for_backward(saved);
    ctx->saved_data["eps"] = eps;
    ctx->saved_data["types"] = types;
    return h;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list saved = ctx->get_saved_variables();
    const at::Tensor scales = saved[saved.size() - 1];
    const at::Tensor logits = saved[saved.size() - 2];
    const at::Tensor query = saved[saved.size() - 3];
    const at::Tensor gain = saved[saved.size() - 4];
    saved.resize(saved.size() - 4);
    const auto types = ctx->saved_data["types"].toIntVector();
    const at::Tensor dh = grads[0].contiguous();
    variable_list result(saved.size() + 3);
    at::Tensor pulled;  // sum over tokens and sources of ds_i k_i  [d]
    if (fused(saved)) {
      pulled = at::empty_like(gain);
      AttnResBackward args;
      args.forward = arguments(saved, gain, query, ctx->saved_data["eps"].toDouble());
      args.forward.logits = logits.mutable_data_ptr();
      args.forward.scales = scales.mutable_data_ptr();
      args.dh = dh.const_data_ptr();
      for (std::size_t i = 0; i < saved.size(); ++i) {
        result[i] = at::empty_like(saved[i]);
        args.dsources.push_back(result[i].mutable_data_ptr());
      }
      args.pulled = pulled.mutable_data_ptr();
      gain.is_cpu() ? attn_res_backward(args) : backward_on_device(args, gain);
    } else {
      pulled = backward_by_torch(saved, gain, query, logits, scales, dh, result);
    }
    for (std::size_t i = 0; i < saved.size(); ++i)
      result[i] = result[i].to(static_cast<at::ScalarType>(types[i]));
    result[saved.size()] = pulled * query.flatten();
    result[saved.size() + 1] = (pulled * gain).view(query.sizes());
    return result;
  }

 private:
  static at::Tensor backward_by_torch(const variable_list& sources, const at::Tensor& gain,
                                      const at::Tensor& query, const at::Tensor& logits,
                                      const at::Tensor& scales, const at::Tensor& dh,
                                      variable_list& dsources) {
    const at::ScalarType island = gain.scalar_type();
    const at::Tensor direction = gain * query.flatten();
    const at::Tensor p = at::softmax(logits, 1);
    std::vector<at::Tensor> dots;
    for (const at::Tensor& source : sources)
      dots.push_back((source.to(island) * dh).sum(-1, /*keepdim=*/true));
    const at::Tensor a = at::cat(dots, 1);
    const at::Tensor ds = p * (a - (p * a).sum(-1, /*keepdim=*/true));
    const at::Tensor pull = ds * scales;
    const at::Tensor back = pull * logits * scales / static_cast<double>(gain.size(0));
    at::Tensor pulled;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const auto at_i = static_cast<std::int64_t>(i);
      const at::Tensor wide = sources[i].to(island);
      const at::Tensor pull_i = pull.narrow(1, at_i, 1);
      at::Tensor dv = dh * p.narrow(1, at_i, 1);
      dv.addcmul_(pull_i, direction.unsqueeze(0));
      dv.addcmul_(back.narrow(1, at_i, 1), wide, -1);
      dsources[i] = dv;
      const at::Tensor part = wide.t().mv(pull_i.squeeze(1));
      pulled = pulled.defined() ? pulled.add_(part) : part;
    }
    return pulled;
  }
};

}  // namespace

at::Tensor attn_res_composed(at::TensorList sources, const at::Tensor& gain,
                             const at::Tensor& query, double eps) {
  std::vector<at::Tensor> wide;
  for (const at::Tensor& source : sources)
    wide.push_back(source.to(gain.scalar_type()));
  const at::Tensor values = at::stack(wide, 1);  // [tokens,M,d]
  const at::Tensor keys = values * inverse_rms(values, eps) * gain;
  const at::Tensor p = at::softmax((keys * query.flatten()).sum(-1), 1);
  return (values * p.unsqueeze(-1)).sum(1);
}

at::Tensor attn_res(at::TensorList sources, const at::Tensor& gain, const at::Tensor& query,
                    double eps) {
  const auto run = [](at::TensorList from, const at::Tensor& g, const at::Tensor& q, double e) {
    return AttnResFunction::apply(from, g, q, e);
  };
  return observed("attn_res", run, arg("sources", sources), arg("gain", gain), arg("query", query),
                  arg("eps", eps));
}

AttnResWeights AttnResWeights::make(std::int64_t hidden_size, const LayerOptions& layer) {
  return {new_parameter({hidden_size}, layer.tensors),
          new_parameter({1, hidden_size}, layer.tensors)};
}

void AttnResWeights::collect(const std::string& name, std::vector<Parameter>& parameters) const {
  parameters.push_back({name + "_norm.weight", gain, ParameterKind::kNorm});
  parameters.push_back({name + "_proj.weight", query, ParameterKind::kQuery});
}

std::vector<AttnResPartial> attn_res_partials(at::TensorList sources,
                                              const std::vector<AttnResWeights>& places,
                                              double eps) {
  if (sources.empty() || places.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "attn_res_partials: expected at least one source and one place, got " +
                    std::to_string(sources.size()) + " and " + std::to_string(places.size()));
  }
  const at::ScalarType island = places.front().gain.scalar_type();
  std::vector<at::Tensor> directions;
  for (const AttnResWeights& place : places)
    directions.push_back(place.gain.detach() * place.query.detach().flatten());
  const at::Tensor queries = at::stack(directions, 1);  // [d,S]
  std::vector<at::Tensor> logits;                       // per source [tokens,S]
  for (const at::Tensor& source : sources) {
    const at::Tensor wide = source.detach().to(island);
    logits.push_back(at::mm(wide, queries) * inverse_rms(wide, eps));
  }
  std::vector<AttnResPartial> partials(places.size());
  at::Tensor largest = logits.front();
  for (const at::Tensor& more : logits)
    largest = at::max(largest, more);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const at::Tensor wide = sources[i].detach().to(island);
    const at::Tensor share = (logits[i] - largest).exp();
    for (std::size_t q = 0; q < places.size(); ++q) {
      const at::Tensor part = share.narrow(1, static_cast<std::int64_t>(q), 1);
      AttnResPartial& partial = partials[q];
      partial.weighted = i == 0 ? wide * part : partial.weighted.addcmul_(wide, part);
      partial.total = i == 0 ? part.clone() : partial.total.add_(part);
    }
  }
  for (std::size_t q = 0; q < places.size(); ++q)
    partials[q].largest = largest.narrow(1, static_cast<std::int64_t>(q), 1);
  return partials;
}

at::Tensor attn_res_merge(const AttnResPartial& partial, const at::Tensor& source,
                          const AttnResWeights& place, double eps) {
  const at::Tensor wide = source.detach().to(partial.weighted.scalar_type());
  const at::Tensor direction = place.gain.detach() * place.query.detach().flatten();
  const at::Tensor logit = (wide * direction).sum(-1, /*keepdim=*/true) * inverse_rms(wide, eps);
  const at::Tensor largest = at::max(partial.largest, logit);
  const at::Tensor old_share = (partial.largest - largest).exp();
  const at::Tensor new_share = (logit - largest).exp();
  return (partial.weighted * old_share + wide * new_share) /
         (partial.total * old_share + new_share);
}

at::Tensor attn_res_finish(const AttnResPartial& partial) {
  return partial.weighted / partial.total;
}

}  // namespace kda::model
