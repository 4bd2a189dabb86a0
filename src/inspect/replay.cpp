#include "inspect/replay.h"

#include <c10/core/GradMode.h>

#include <cstring>
#include <limits>

#include "inspect/operator_call.h"

namespace kda::inspect {
namespace {

double max_abs_diff(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  if (a.numel() == 0) return 0;
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

struct Rerun {
  std::vector<at::Tensor> inputs;  // what they have become
  std::vector<at::Tensor> outputs;
};

Rerun rerun(const Node& node) {
  Rerun run;
  for (const NodeInput& input : node.inputs)
    run.inputs.push_back(node.changed.empty() ? input.value : faithful_copy(input.value));
  if (!node.random) {
    run.outputs = node.replay(run.inputs);
    return run;
  }
  const c10::Device device =
      run.inputs.empty() ? c10::Device(c10::kCPU) : run.inputs.front().device();
  with_random_state(node.random_state, device, [&] { run.outputs = node.replay(run.inputs); });
  return run;
}

bool has_gradients(const Graph& graph) {
  for (const Node& node : graph.nodes)
    if (node.kind == NodeKind::kGradient) return true;
  return false;
}

}  // namespace

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.detach().to(at::kCPU).contiguous();
  const at::Tensor y = b.detach().to(at::kCPU).contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

Validation validate(const Graph& graph) {
  // A function may choose its way by whether a gradient is wanted (it forms it on the way).
  const c10::AutoGradMode as_recorded(has_gradients(graph));
  Validation out;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (node.kind != NodeKind::kOperation && node.kind != NodeKind::kGradient) continue;
    const auto index = static_cast<std::int64_t>(i);
    const std::size_t before = out.differences.size();
    for (std::size_t j = 0; j < node.inputs.size(); ++j) {
      const NodeInput& input = node.inputs[j];
      if (input.node < 0 || !input.writers.empty()) continue;
      const at::Tensor made = graph.nodes[static_cast<std::size_t>(input.node)]
                                  .outputs[static_cast<std::size_t>(input.output)]
                                  .value;
      if (!same_bits(input.value, made)) {
        out.differences.push_back(
            {index, static_cast<std::int64_t>(j), max_abs_diff(input.value, made), true});
      }
    }
    if (!node.replay) {
      out.skipped.push_back({index, "adds to a leaf"});
    } else {
      const Rerun again = rerun(node);
      const auto compare = [&](const at::Tensor& real, const at::Tensor& now, std::size_t j,
                               bool is_input) {
        if (now.defined() && same_bits(now, real)) return;
        const double difference =
            now.defined() ? max_abs_diff(now, real) : std::numeric_limits<double>::infinity();
        out.differences.push_back({index, static_cast<std::int64_t>(j), difference, is_input});
      };
      for (std::size_t j = 0; j < node.outputs.size(); ++j) {
        compare(node.outputs[j].value, j < again.outputs.size() ? again.outputs[j] : at::Tensor(),
                j, false);
      }
      for (const std::int64_t changed : node.changed) {
        const auto j = static_cast<std::size_t>(changed);
        compare(node.inputs[j].written, again.inputs[j], j, true);
      }
    }
    if (out.differences.size() > before) {
      ++out.different;
    } else if (node.replay) {
      ++out.equal;
    }
  }
  return out;
}

}  // namespace kda::inspect
