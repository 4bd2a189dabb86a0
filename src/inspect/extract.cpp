#include "inspect/extract.h"

#include <c10/core/GradMode.h>

#include <map>
#include <set>
#include <span>
#include <utility>

#include "io/safetensors_writer.h"
#include "kda/error.h"

namespace kda::inspect {
namespace {

const NodeOutput& output_of(const Graph& graph, OutputRef from) {
  return graph.nodes[static_cast<std::size_t>(from.node)]
      .outputs[static_cast<std::size_t>(from.output)];
}

// Names of dimensions as far as a shape tells: most tensors have a row a token.
std::vector<std::string> axes_of(const Graph& graph, const Node& node, const at::Tensor& value) {
  const Phase& phase = graph.phases[static_cast<std::size_t>(node.phase)];
  std::vector<std::string> axes;
  for (std::int64_t d = 0; d < value.dim(); ++d)
    axes.push_back("d" + std::to_string(d));
  const std::size_t first = value.dim() == 4 && value.size(0) == 1 ? 1 : 0;
  if (node.kind == NodeKind::kStage || node.kind == NodeKind::kGradient || axes.size() <= first ||
      value.size(static_cast<std::int64_t>(first)) != phase.num_tokens) {
    return axes;
  }
  axes[first] = "token";
  if (axes.size() - first == 2) axes[first + 1] = "channel";
  if (axes.size() - first == 3) {
    axes[first + 1] = "head";
    axes[first + 2] = "channel";
  }
  return axes;
}

class Collector {
 public:
  explicit Collector(const Graph& graph) : graph_(graph) {}

  void add_output(const std::string& name, OutputRef from) {
    const Node& node = graph_.nodes[static_cast<std::size_t>(from.node)];
    const at::Tensor value = output_of(graph_, from).value;
    add(node, {name, "activation", axes_of(graph_, node, value), node.label, value});
  }

  void add_node(const Selection& item) {
    const Node& node = graph_.nodes[static_cast<std::size_t>(item.node)];
    for (std::size_t j = 0; j < node.outputs.size(); ++j) {
      const auto output = static_cast<std::int64_t>(j);
      if (item.output >= 0 && item.output != output) continue;
      const std::string& named = node.outputs[j].name;
      const std::string part = named.empty() ? std::to_string(j) : named;
      add_output(node.outputs.size() == 1 && named.empty() ? item.name : item.name + "." + part,
                 {item.node, output});
    }
  }

  void add_module(const Selection& item) {
    const Module* module = graph_.find_module(item.name);
    if (module == nullptr) return;
    // A layer hands on its residual stream in two parts, whose sum is formed later.
    const std::string last = item.name.substr(item.name.rfind('.') + 1);
    const bool layer = !last.empty() && last.find_first_not_of("0123456789") == std::string::npos;
    if (layer && module->outputs.size() == 2) {
      const at::Tensor base = output_of(graph_, module->outputs[0]).value;
      const at::Tensor delta = output_of(graph_, module->outputs[1]).value;
      const Node& node = graph_.nodes[static_cast<std::size_t>(module->outputs[1].node)];
      add(node, {item.name, "activation", axes_of(graph_, node, base), node.label,
                 base + delta.to(base.scalar_type())});
      return;
    }
    for (std::size_t j = 0; j < module->outputs.size(); ++j) {
      add_output(module->outputs.size() == 1 ? item.name : item.name + "." + std::to_string(j),
                 module->outputs[j]);
    }
  }

  void add_quantity(const Selection& item) {
    const Quantity& quantity = item.quantity;
    const at::Tensor value = compute(graph_, quantity);
    add(graph_.nodes[static_cast<std::size_t>(quantity.node)],
        {item.name, quantity.kind, quantity.axes, quantity.module,
         at::isFloatingType(value.scalar_type()) ? value.to(at::kFloat) : value});
  }

  std::vector<Extracted> take() { return std::move(all_); }

 private:
  void add(const Node& from, Extracted item) {
    if (!seen_.insert(item.name).second) return;
    const Phase& phase = graph_.phases[static_cast<std::size_t>(from.phase)];
    item.first_token = phase.first_token;
    item.num_tokens = phase.num_tokens;
    item.value = item.value.detach().to(at::kCPU).contiguous();
    all_.push_back(std::move(item));
  }

  const Graph& graph_;
  std::set<std::string> seen_;
  std::vector<Extracted> all_;
};

io::StDtype stored_type(at::ScalarType type, const std::string& name) {
  static const std::map<at::ScalarType, io::StDtype> kTypes{
      {at::kDouble, io::StDtype::kF64},    {at::kFloat, io::StDtype::kF32},
      {at::kBFloat16, io::StDtype::kBF16}, {at::kHalf, io::StDtype::kF16},
      {at::kLong, io::StDtype::kI64},      {at::kInt, io::StDtype::kI32},
      {at::kShort, io::StDtype::kI16},     {at::kChar, io::StDtype::kI8},
      {at::kByte, io::StDtype::kU8},       {at::kBool, io::StDtype::kBool}};
  const auto found = kTypes.find(type);
  if (found != kTypes.end()) return found->second;
  throw Error(ErrorCode::kUnsupported,
              name + ": safetensors has no type for " + std::string(c10::toString(type)));
}

}  // namespace

std::vector<Extracted> extract(const Graph& graph, const std::vector<Selection>& chosen) {
  const c10::NoGradGuard no_grad;
  Collector collector(graph);
  for (const Selection& item : chosen) {
    switch (item.kind) {
      case Selection::Kind::kNode:
        collector.add_node(item);
        break;
      case Selection::Kind::kModule:
        collector.add_module(item);
        break;
      case Selection::Kind::kQuantity:
        collector.add_quantity(item);
        break;
    }
  }
  return collector.take();
}

void write_extracted(const std::filesystem::path& path, const std::vector<Extracted>& tensors,
                     const io::Json& tokens, const io::Json& run) {
  std::vector<io::StSpec> specs;
  io::Json about = io::Json::object();
  for (const Extracted& item : tensors) {
    specs.push_back(
        {item.name, stored_type(item.value.scalar_type(), item.name), item.value.sizes().vec()});
    about[item.name] = {{"kind", item.kind},
                        {"axes", item.axes},
                        {"source", item.source},
                        {"first_token", item.first_token},
                        {"num_tokens", item.num_tokens}};
  }
  io::SafetensorsWriter writer(path, specs,
                               {{"format", "kda-extract"},
                                {"version", "1"},
                                {"tokens", tokens.dump()},
                                {"run", run.dump()},
                                {"tensors", about.dump()}});
  for (const Extracted& item : tensors) {
    writer.write_tensor(item.name,
                        std::span(static_cast<const std::byte*>(item.value.const_data_ptr()),
                                  static_cast<std::size_t>(item.value.nbytes())));
  }
  writer.commit();
}

}  // namespace kda::inspect
