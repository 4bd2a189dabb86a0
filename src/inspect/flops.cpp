#include "inspect/flops.h"

#include <array>
#include <string_view>

#include "model/tensors.h"

namespace kda::inspect {
namespace {

// Rows of x times all weights; "weight" or "weight[0]", "weight[1]", ...
std::int64_t linear_flops(const Node& node) {
  std::int64_t out = 0;
  for (const NodeInput& input : node.inputs)
    if (input.argument.starts_with("weight")) out += input.form.shape.front();
  const at::Tensor x = node.argument("x");
  return 2 * x.numel() * out;
}

std::int64_t product_flops(const at::Tensor& a, const at::Tensor& b) {
  if (b.dim() < 2) return 2 * a.numel();
  return 2 * a.numel() * b.size(-1);
}

std::int64_t delta_rule_flops(const Node& node) {
  const at::Tensor q = node.argument("q");
  const at::Tensor v = node.argument("v");
  return 6 * v.numel() * q.size(3);
}

std::int64_t attention_flops(const Node& node) {
  const at::Tensor q = node.argument("q");
  const at::Tensor v = node.argument("v");
  const at::Tensor cu_host = node.argument("cu_seqlens").to(at::kCPU).contiguous();
  const auto cu = model::host_span(cu_host);
  std::int64_t pairs = 0;
  for (std::size_t n = 0; n + 1 < cu.size(); ++n) {
    const std::int64_t length = cu[n + 1] - cu[n];
    pairs += length * (length + 1) / 2;
  }
  return 2 * q.size(1) * (q.size(2) + v.size(2)) * pairs;
}

std::int64_t experts_flops(const Node& node) {
  const at::Tensor down = node.argument("down");
  return 6 * node.argument("experts").numel() * down.size(1) * down.size(2);
}

std::int64_t cross_entropy_flops(const Node& node) {
  const std::int64_t products =
      1 + (node.flag("hidden_gradient") ? 1 : 0) + (node.flag("head_gradient") ? 1 : 0);
  return products * product_flops(node.argument("hidden"), node.argument("head").t());
}

}  // namespace

std::optional<std::int64_t> flops_of(const Graph& graph, const Node& node) {
  const std::string_view f = node.function;
  if (node.kind == NodeKind::kGradient) {
    // One product each for the two operands of the forward one. The loss has done its own already.
    static constexpr std::array<std::string_view, 6> kTwice{
        "linear_backward",    "short_conv_backward", "chunk_backward",
        "attention_backward", "expert_sum_backward", "route_backward"};
    if (node.gradient_of < 0) return std::nullopt;
    const Node& forward = graph.nodes[static_cast<std::size_t>(node.gradient_of)];
    if (!forward.flops || forward.function == "cross_entropy_sum") return std::nullopt;
    for (const std::string_view twice : kTwice)
      if (f.ends_with(twice)) return 2 * *forward.flops;
    return std::nullopt;
  }
  if (f == "linear") return linear_flops(node);
  if (f == "mm" || f == "bmm") return product_flops(node.argument("self"), node.argument("mat2"));
  if (f == "matmul") return product_flops(node.argument("self"), node.argument("other"));
  if (f == "chunk_kda" || f == "recurrent_kda_pool") return delta_rule_flops(node);
  if (f == "packed_attention") return attention_flops(node);
  if (f == "short_conv" || f == "short_conv_cached") {
    return 2 * node.argument("x").numel() * node.argument("weight").size(2);
  }
  if (f == "expert_sum") return experts_flops(node);
  if (f == "route") return product_flops(node.argument("x"), node.argument("weight").t());
  if (f == "cross_entropy_sum") return cross_entropy_flops(node);
  return std::nullopt;
}

}  // namespace kda::inspect
