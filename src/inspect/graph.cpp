#include "inspect/graph.h"

#include <ATen/ops/isfinite.h>
#include <c10/core/GradMode.h>

#include <algorithm>

namespace kda::inspect {

const char* name_of(NodeKind kind) {
  switch (kind) {
    case NodeKind::kInput:
      return "input";
    case NodeKind::kConstant:
      return "constant";
    case NodeKind::kOperation:
      return "operation";
    case NodeKind::kStage:
      return "stage";
    case NodeKind::kGradient:
      return "gradient";
  }
  return "?";
}

TensorForm TensorForm::of(const at::Tensor& tensor) {
  return {tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type()};
}

Statistics statistics_of(const at::Tensor& tensor) {
  const c10::NoGradGuard no_grad;
  Statistics out;
  if (tensor.numel() == 0) return out;
  const at::Tensor flat = tensor.detach().to(at::kDouble).flatten();
  const at::Tensor good = flat.masked_select(at::isfinite(flat));
  out.nonfinite = flat.numel() - good.numel();
  if (good.numel() == 0) return out;
  out.min = good.min().item<double>();
  out.max = good.max().item<double>();
  out.mean = good.mean().item<double>();
  out.rms = (good * good).mean().sqrt().item<double>();
  return out;
}

at::Tensor Node::argument(const std::string& name) const {
  for (const NodeInput& input : inputs)
    if (input.argument == name) return input.value;
  return {};
}

namespace {

const model::Attribute* find_attribute(const Node& node, const std::string& name) {
  for (const model::Attribute& attribute : node.attributes)
    if (attribute.name == name) return &attribute;
  return nullptr;
}

}  // namespace

double Node::number(const std::string& name, double fallback) const {
  const model::Attribute* found = find_attribute(*this, name);
  const double* value = found == nullptr ? nullptr : std::get_if<double>(&found->value);
  return value == nullptr ? fallback : *value;
}

std::int64_t Node::whole(const std::string& name, std::int64_t fallback) const {
  const model::Attribute* found = find_attribute(*this, name);
  const auto* value = found == nullptr ? nullptr : std::get_if<std::int64_t>(&found->value);
  return value == nullptr ? fallback : *value;
}

bool Node::flag(const std::string& name) const {
  const model::Attribute* found = find_attribute(*this, name);
  const bool* value = found == nullptr ? nullptr : std::get_if<bool>(&found->value);
  return value != nullptr && *value;
}

std::vector<std::int64_t> Graph::parents(const Node& node) const {
  std::vector<std::int64_t> all;
  const auto add = [&](std::int64_t index) {
    if (index >= 0 && std::find(all.begin(), all.end(), index) == all.end()) all.push_back(index);
  };
  for (const NodeInput& input : node.inputs) {
    add(input.node);
    for (const std::int64_t writer : input.writers)
      add(writer);
  }
  return all;
}

std::vector<std::vector<std::int64_t>> Graph::children() const {
  std::vector<std::vector<std::int64_t>> all(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (const std::int64_t parent : parents(nodes[i]))
      all[static_cast<std::size_t>(parent)].push_back(static_cast<std::int64_t>(i));
  }
  return all;
}

const Module* Graph::find_module(const std::string& path) const {
  for (const Module& module : modules)
    if (module.path == path) return &module;
  return nullptr;
}

}  // namespace kda::inspect
