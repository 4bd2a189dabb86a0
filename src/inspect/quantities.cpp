#include "inspect/quantities.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/linalg_svdvals.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>

#include "inspect/kda_stages.h"
#include "kda/error.h"
#include "model/tensors.h"

namespace kda::inspect {
namespace {

struct Kind {
  const char* function;
  const char* kind;
  std::vector<std::string> axes;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"chunk_kda", "decay", {"token", "head", "channel"}},
      {"chunk_kda", "beta", {"token", "head"}},
      {"chunk_kda", "state_norm", {"token", "head"}},
      {"chunk_kda", "state_singular_values", {"token", "head", "index"}},
      {"chunk_kda", "state", {"sequence", "head", "row", "column"}},
      {"chunk_kda", "attention_map", {"head", "token", "key_token"}},
      {"packed_attention", "attention", {"head", "token", "key_token"}},
      {"route", "load", {"expert"}},
      {"route", "router_weights", {"token", "expert"}},
      {"attn_res", "source_weights", {"token", "source"}},
  };
  return all;
}

void check_length(const Quantity& quantity, std::int64_t tokens) {
  if (tokens <= kMaxMapTokens) return;
  throw Error(ErrorCode::kUnsupported, quantity.name + ": a map of every pair of tokens, at most " +
                                           std::to_string(kMaxMapTokens) + " tokens, got " +
                                           std::to_string(tokens));
}

at::Tensor state_norms(const KdaInputs& in) {
  at::Tensor norms = at::zeros({in.q.size(0), in.q.size(1)}, in.q.options());
  visit_states(in, [&](std::int64_t, std::int64_t t, const at::Tensor& state) {
    norms[t].copy_((state * state).sum({1, 2}).sqrt());
  });
  return norms;
}

// Many small matrices at once: a call each would cost more than the decomposition.
at::Tensor singular_values(const KdaInputs& in) {
  constexpr std::size_t kTogether = 64;
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> states;
  const auto flush = [&] {
    if (!states.empty()) values.push_back(at::linalg_svdvals(at::stack(states)));
    states.clear();
  };
  visit_states(in, [&](std::int64_t, std::int64_t, const at::Tensor& state) {
    states.push_back(state.clone());
    if (states.size() == kTogether) flush();
  });
  flush();
  return at::cat(values);
}

at::Tensor last_states(const KdaInputs& in) {
  at::Tensor last = in.state0.clone();
  visit_states(
      in, [&](std::int64_t n, std::int64_t, const at::Tensor& state) { last[n].copy_(state); });
  return last;
}

at::Tensor attention_probabilities(const Node& node) {
  const at::Tensor q = host_double(node.argument("q")).transpose(0, 1);  // [H,T,K]
  const at::Tensor k = host_double(node.argument("k")).transpose(0, 1);
  const at::Tensor cu_host = node.argument("cu_seqlens").to(at::kCPU, at::kLong).contiguous();
  const auto cu = model::host_span(cu_host);
  at::Tensor map = at::zeros({q.size(0), q.size(1), q.size(1)}, q.options());
  for (std::size_t n = 0; n + 1 < cu.size(); ++n) {
    const std::int64_t length = cu[n + 1] - cu[n];
    const auto part = [&](const at::Tensor& x) { return x.narrow(1, cu[n], length); };
    const at::Tensor later = at::ones({length, length}, q.options().dtype(at::kBool)).triu(1);
    const at::Tensor logits =
        (at::matmul(part(q), part(k).transpose(1, 2)) * node.number("scale", 1.0))
            .masked_fill(later, -std::numeric_limits<double>::infinity());
    map.narrow(1, cu[n], length).narrow(2, cu[n], length).copy_(at::softmax(logits, -1));
  }
  return map;
}

at::Tensor router_weights(const Node& node) {
  const at::Tensor weights = host_double(node.outputs.at(0).value);
  const at::Tensor experts = node.outputs.at(1).value.to(at::kCPU);
  const std::int64_t count = node.argument("weight").size(0);
  return at::zeros({weights.size(0), count}, weights.options()).scatter_(1, experts, weights);
}

at::Tensor expert_load(const Node& node) {
  const at::Tensor experts = node.outputs.at(1).value.to(at::kCPU).flatten();
  return at::bincount(experts, {}, node.argument("weight").size(0));
}

at::Tensor source_weights(const Node& node) {
  const at::Tensor direction =
      host_double(node.argument("gain")) * host_double(node.argument("query")).flatten();
  const double eps = node.number("eps", 0.0);
  std::vector<at::Tensor> logits;
  for (const NodeInput& input : node.inputs) {
    if (!input.argument.starts_with("sources")) continue;
    const at::Tensor source = host_double(input.value);
    logits.push_back((source * direction).sum(-1) * at::rsqrt((source * source).mean(-1) + eps));
  }
  return at::softmax(at::stack(logits, 1), 1);
}

// The router is a part of its layer of experts; the other operations run in the module they are of.
std::string module_of(const Node& node) {
  if (node.function != "route") return node.module;
  return node.module.substr(0, node.module.rfind('.'));
}

}  // namespace

std::vector<Quantity> quantities_of(const Graph& graph) {
  std::vector<Quantity> all;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    for (const Kind& kind : kinds()) {
      if (node.function != kind.function || node.kind != NodeKind::kOperation) continue;
      const std::string module = module_of(node);
      all.push_back(
          {module + "." + kind.kind, kind.kind, module, kind.axes, static_cast<std::int64_t>(i)});
    }
  }
  return all;
}

at::Tensor compute(const Graph& graph, const Quantity& quantity) {
  const c10::NoGradGuard no_grad;
  const Node& node = graph.nodes[static_cast<std::size_t>(quantity.node)];
  const std::string& kind = quantity.kind;
  if (kind == "attention") {
    check_length(quantity, node.argument("q").size(0));
    return attention_probabilities(node);
  }
  if (kind == "load") return expert_load(node);
  if (kind == "router_weights") return router_weights(node);
  if (kind == "source_weights") return source_weights(node);
  const KdaInputs in = kda_inputs(node);
  if (kind == "decay") return at::exp(in.g_ln);
  if (kind == "beta") return in.beta;
  if (kind == "state_norm") return state_norms(in);
  if (kind == "state_singular_values") return singular_values(in);
  if (kind == "state") return last_states(in);
  if (kind == "attention_map") {
    check_length(quantity, in.q.size(0));
    return attention_map(in);
  }
  throw Error(ErrorCode::kInternal, "quantity: no kind '" + kind + "'");
}

}  // namespace kda::inspect
