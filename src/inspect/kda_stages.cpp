#include "inspect/kda_stages.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "kda/error.h"
#include "model/tensors.h"

namespace kda::inspect {
namespace {

at::Tensor normalised(const at::Tensor& x) {
  constexpr double kEps = 1e-6;
  return x * at::rsqrt((x * x).sum(-1, /*keepdim=*/true) + kEps);
}

// [B,T,H,...] to [B*T,HV,...].
at::Tensor by_value_head(const at::Tensor& x, std::int64_t value_heads) {
  const at::Tensor flat = host_double(x).flatten(0, 1);
  return flat.repeat_interleave(value_heads / flat.size(1), 1);
}

at::Tensor decay_of(const Node& node, std::int64_t value_heads, std::int64_t key_dim) {
  at::Tensor g = host_double(node.argument("g")).flatten(0, 1);
  if (!node.flag("raw_gate")) return g;
  at::Tensor slope = at::zeros({value_heads, 1}, g.options()) + 1;
  if (const at::Tensor a_log = node.argument("a_log"); a_log.defined()) {
    slope = at::exp(host_double(a_log).reshape({value_heads, 1}));
  }
  if (const at::Tensor bias = node.argument("dt_bias"); bias.defined()) {
    g = g + host_double(bias).reshape({value_heads, key_dim});
  }
  const double bound = node.number("lower_bound", 0.0);
  return bound < 0 ? bound * at::sigmoid(slope * g) : -slope * at::softplus(g);
}

}  // namespace

at::Tensor host_double(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU, at::kDouble);
}

KdaInputs kda_inputs(const Node& node) {
  if (node.function != "chunk_kda") {
    throw Error(ErrorCode::kInvalidArgument,
                "node: expected a call of chunk_kda, got " + node.label);
  }
  const c10::NoGradGuard no_grad;
  const at::Tensor v = node.argument("v");
  const std::int64_t heads = v.size(2);
  const std::int64_t key_dim = node.argument("q").size(3);
  KdaInputs in;
  in.q = by_value_head(node.argument("q"), heads);
  in.k = by_value_head(node.argument("k"), heads);
  if (node.flag("qk_l2norm")) {
    in.q = normalised(in.q);
    in.k = normalised(in.k);
  }
  in.v = by_value_head(v, heads);
  in.g_ln = decay_of(node, heads, key_dim);
  in.beta = host_double(node.argument("beta")).flatten(0, 1);
  if (node.flag("beta_is_logit")) in.beta = node.number("beta_max", 1.0) * at::sigmoid(in.beta);
  in.scale = node.number("scale", 1.0 / std::sqrt(static_cast<double>(key_dim)));
  in.chunk = node.whole("chunk", 64);
  if (const at::Tensor cu = node.argument("cu_seqlens"); cu.defined()) {
    const at::Tensor host = cu.to(at::kCPU, at::kLong).contiguous();
    const auto span = model::host_span(host);
    in.cu.assign(span.begin(), span.end());
  } else {
    for (std::int64_t b = 0; b <= v.size(0); ++b)
      in.cu.push_back(b * v.size(1));
  }
  const at::Tensor state = node.argument("initial_state");
  in.state0 =
      state.defined()
          ? host_double(state)
          : at::zeros({static_cast<std::int64_t>(in.cu.size()) - 1, heads, key_dim, v.size(3)},
                      in.v.options());
  return in;
}

KdaStages kda_stages(const KdaInputs& in) {
  const c10::NoGradGuard no_grad;
  const std::int64_t heads = in.v.size(1);
  const std::int64_t C = in.chunk;
  KdaStages out;
  out.gcum_log2 = at::zeros_like(in.g_ln);
  out.w = at::zeros_like(in.k);
  out.u = at::zeros_like(in.v);
  out.v_new = at::zeros_like(in.v);
  out.o = at::zeros_like(in.v);
  std::vector<at::Tensor> a_qk, a_kk, t_inv, starts, finals;
  for (std::size_t n = 0; n + 1 < in.cu.size(); ++n) {
    at::Tensor S = in.state0[static_cast<std::int64_t>(n)].clone();
    for (std::int64_t first = in.cu[n]; first < in.cu[n + 1]; first += C) {
      const std::int64_t L = std::min(C, in.cu[n + 1] - first);
      // [HV,L,*]
      const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, L).transpose(0, 1); };
      const at::Tensor Gc = part(in.g_ln).cumsum(1) * std::numbers::log2e;
      const at::Tensor q = part(in.q);
      const at::Tensor k = part(in.k);
      const at::Tensor b = part(in.beta.unsqueeze(-1));
      // [HV,L,L,K]; exponents above the diagonal would be positive and are not used.
      const at::Tensor decay =
          at::exp2((Gc.unsqueeze(2) - Gc.unsqueeze(1)).clamp_max(0.0)) * k.unsqueeze(1);
      const at::Tensor n_qk = (q.unsqueeze(2) * decay).sum(-1).tril();
      const at::Tensor lower = ((k.unsqueeze(2) * decay).sum(-1) * b).tril(-1);
      const at::Tensor unit = at::eye(L, in.v.options());
      const at::Tensor inverse =
          at::linalg_solve_triangular(lower + unit, unit.expand({heads, L, L}).contiguous(),
                                      /*upper=*/false, /*left=*/true, /*unitriangular=*/true);
      const at::Tensor from_start = at::exp2(Gc);
      const at::Tensor last = Gc.narrow(1, L - 1, 1);
      const at::Tensor w = at::bmm(inverse, b * k * from_start);
      const at::Tensor u = at::bmm(inverse, b * part(in.v));
      const at::Tensor v_new = u - at::bmm(w, S);
      const at::Tensor o = in.scale * (at::bmm(q * from_start, S) + at::bmm(n_qk, v_new));
      const auto padded = [&](const at::Tensor& square) {
        at::Tensor full = at::zeros({heads, C, C}, square.options());
        full.narrow(1, 0, L).narrow(2, 0, L).copy_(square);
        return full;
      };
      a_qk.push_back(padded(n_qk));
      a_kk.push_back(padded(lower));
      t_inv.push_back(padded(inverse));
      starts.push_back(S);
      const auto put = [&](const at::Tensor& target, const at::Tensor& value) {
        target.narrow(0, first, L).copy_(value.transpose(0, 1));
      };
      put(out.gcum_log2, Gc);
      put(out.w, w);
      put(out.u, u);
      put(out.v_new, v_new);
      put(out.o, o);
      S = at::exp2(last).transpose(1, 2) * S +
          at::bmm((k * at::exp2(last - Gc)).transpose(1, 2), v_new);
    }
    finals.push_back(S);
  }
  const auto stacked = [&](const std::vector<at::Tensor>& list) {
    return list.empty() ? at::zeros({0}, in.v.options()) : at::stack(list);
  };
  out.a_qk = stacked(a_qk);
  out.a_kk = stacked(a_kk);
  out.t_inv = stacked(t_inv);
  out.h = stacked(starts);
  out.final_state = stacked(finals);
  return out;
}

void visit_states(const KdaInputs& in,
                  const std::function<void(std::int64_t, std::int64_t, const at::Tensor&)>& visit) {
  const c10::NoGradGuard no_grad;
  for (std::size_t n = 0; n + 1 < in.cu.size(); ++n) {
    at::Tensor S = in.state0[static_cast<std::int64_t>(n)].clone();
    for (std::int64_t t = in.cu[n]; t < in.cu[n + 1]; ++t) {
      S.mul_(at::exp(in.g_ln[t]).unsqueeze(-1));
      const at::Tensor k = in.k[t].unsqueeze(-1);  // [HV,K,1]
      const at::Tensor missing = in.v[t].unsqueeze(1) - at::bmm(k.transpose(1, 2), S);
      S.add_(at::bmm(k * in.beta[t].view({-1, 1, 1}), missing));
      visit(static_cast<std::int64_t>(n), t, S);
    }
  }
}

at::Tensor attention_map(const KdaInputs& in) {
  const c10::NoGradGuard no_grad;
  const std::int64_t tokens = in.q.size(0);
  const std::int64_t heads = in.q.size(1);
  at::Tensor map = at::zeros({heads, tokens, tokens}, in.q.options());
  for (std::size_t n = 0; n + 1 < in.cu.size(); ++n) {
    const std::int64_t first = in.cu[n];
    const std::int64_t length = in.cu[n + 1] - first;
    KdaInputs unit = in;
    unit.q = in.q.narrow(0, first, length);
    unit.k = in.k.narrow(0, first, length);
    unit.g_ln = in.g_ln.narrow(0, first, length);
    unit.beta = in.beta.narrow(0, first, length);
    unit.v = at::eye(length, in.q.options()).unsqueeze(1).expand({length, heads, length});
    unit.state0 = at::zeros({1, heads, in.q.size(2), length}, in.q.options());
    unit.cu = {0, length};
    visit_states(unit, [&](std::int64_t, std::int64_t t, const at::Tensor& state) {
      const at::Tensor row = at::bmm(unit.q[t].unsqueeze(1), state).squeeze(1) * in.scale;
      map.select(1, first + t).narrow(1, first, length).copy_(row);
    });
  }
  return map;
}

void open_operator(Graph& graph, std::int64_t index) {
  if (!graph.nodes[static_cast<std::size_t>(index)].stages.empty()) return;
  const KdaInputs in = kda_inputs(graph.nodes[static_cast<std::size_t>(index)]);
  const KdaStages stages = kda_stages(in);
  using Named = std::vector<std::pair<const char*, at::Tensor>>;
  struct Stage {
    const char* name;
    Named outputs;
    std::vector<const char*> reads;
  };
  const std::vector<Stage> all{
      {"l2norm", {{"q", in.q}, {"k", in.k}}, {}},
      {"gate", {{"g_ln", in.g_ln}, {"beta", in.beta}}, {}},
      {"gate_cumsum", {{"gcum_log2", stages.gcum_log2}}, {"g_ln"}},
      {"intra", {{"a_qk", stages.a_qk}, {"a_kk", stages.a_kk}}, {"q", "k", "beta", "gcum_log2"}},
      {"wy",
       {{"t_inv", stages.t_inv}, {"w", stages.w}, {"u", stages.u}},
       {"k", "beta", "gcum_log2", "a_kk"}},
      {"state",
       {{"h", stages.h}, {"v_new", stages.v_new}, {"final_state", stages.final_state}},
       {"k", "gcum_log2", "w", "u"}},
      {"output", {{"o", stages.o}}, {"q", "gcum_log2", "a_qk", "h", "v_new"}}};
  std::map<std::string, OutputRef> made;
  for (const Stage& stage : all) {
    const Node& whole = graph.nodes[static_cast<std::size_t>(index)];
    Node node;
    node.function = stage.name;
    node.kind = NodeKind::kStage;
    node.nth = whole.nth;
    node.ordinal = whole.ordinal;
    node.pass = whole.pass;
    node.phase = whole.phase;
    node.module = whole.module;
    node.stage_of = index;
    node.label = whole.label + "/" + stage.name;
    for (const char* read : stage.reads) {
      const OutputRef from = made.at(read);
      const NodeOutput& output = graph.nodes[static_cast<std::size_t>(from.node)]
                                     .outputs[static_cast<std::size_t>(from.output)];
      node.inputs.push_back({read, from.node, from.output, "", {}, output.form, output.value, {}});
    }
    const auto place = static_cast<std::int64_t>(graph.nodes.size());
    for (const auto& [name, value] : stage.outputs) {
      made[name] = {place, static_cast<std::int64_t>(node.outputs.size())};
      node.outputs.push_back({TensorForm::of(value), -1, value, name});
    }
    if (std::string(stage.name) == "output") {
      const at::Tensor real = host_double(whole.outputs.front().value).flatten(0, 1);
      node.attributes.push_back(
          {"max_abs_diff_to_operator", (real - stages.o).abs().max().item<double>()});
    }
    graph.nodes[static_cast<std::size_t>(index)].stages.push_back(place);
    graph.nodes.push_back(std::move(node));
  }
}

}  // namespace kda::inspect
