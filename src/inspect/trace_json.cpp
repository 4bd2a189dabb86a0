#include "inspect/trace_json.h"

#include <set>
#include <variant>

#include "inspect/session.h"

namespace kda::inspect {
namespace {

using io::Json;

std::string label_of(const Graph& graph, std::int64_t node) {
  return graph.nodes[static_cast<std::size_t>(node)].label;
}

Json labels(const Graph& graph, const std::vector<std::int64_t>& nodes) {
  Json list = Json::array();
  for (const std::int64_t node : nodes)
    list.push_back(label_of(graph, node));
  return list;
}

Json input_json(const Graph& graph, const NodeInput& input) {
  Json out;
  if (input.node < 0) {
    out["parameter"] = input.parameter;
  } else {
    out["node"] = label_of(graph, input.node);
    out["output"] = input.output;
  }
  out["argument"] = input.argument;
  out["shape"] = input.form.shape;
  out["dtype"] = dtype_text(input.form.dtype);
  if (!input.writers.empty()) out["changed_by"] = labels(graph, input.writers);
  return out;
}

Json output_json(const NodeOutput& output) {
  Json out = {{"shape", output.form.shape},
              {"dtype", dtype_text(output.form.dtype)},
              {"strides", output.form.strides},
              {"view_of", nullptr}};
  if (output.view_of >= 0) out["view_of"] = output.view_of;
  if (!output.name.empty()) out["name"] = output.name;
  return out;
}

Json attributes_json(const Node& node) {
  Json out = Json::object();
  for (const model::Attribute& attribute : node.attributes)
    std::visit([&](const auto& value) { out[attribute.name] = value; }, attribute.value);
  return out;
}

Json statistics_json(const Node& node) {
  if (node.statistics.empty()) return nullptr;
  Json list = Json::array();
  for (std::size_t i = 0; i < node.statistics.size(); ++i) {
    if (!at::isFloatingType(node.outputs[i].form.dtype)) {
      list.push_back(nullptr);
      continue;
    }
    const Statistics& s = node.statistics[i];
    list.push_back({{"min", s.min},
                    {"max", s.max},
                    {"mean", s.mean},
                    {"rms", s.rms},
                    {"nonfinite", s.nonfinite}});
  }
  return list;
}

Json node_json(const Graph& graph, const Node& node, const std::vector<std::int64_t>& children) {
  Json inputs = Json::array();
  Json parameters = Json::array();
  for (const NodeInput& input : node.inputs) {
    inputs.push_back(input_json(graph, input));
    if (input.node < 0) parameters.push_back(input.parameter);
  }
  Json outputs = Json::array();
  for (const NodeOutput& output : node.outputs)
    outputs.push_back(output_json(output));
  Json out;
  out["label"] = node.label;
  out["function"] = node.function;
  out["nth"] = node.nth;
  out["ordinal"] = node.ordinal;
  out["pass"] = node.pass;
  out["kind"] = name_of(node.kind);
  out["phase"] = node.phase;
  out["module"] = node.module;
  out["inputs"] = std::move(inputs);
  out["outputs"] = std::move(outputs);
  out["parents"] = labels(graph, graph.parents(node));
  out["children"] = labels(graph, children);
  out["parameters"] = std::move(parameters);
  out["attributes"] = attributes_json(node);
  out["in_place"] = node.changed;
  out["random"] = node.random;
  out["calls"] = node.calls;
  out["duration_ns"] = node.duration_ns;
  out["flops"] = node.flops ? Json(*node.flops) : Json(nullptr);
  out["stage_of"] = node.stage_of >= 0 ? Json(label_of(graph, node.stage_of)) : Json(nullptr);
  out["stages"] = labels(graph, node.stages);
  out["gradient_of"] =
      node.gradient_of >= 0 ? Json(label_of(graph, node.gradient_of)) : Json(nullptr);
  out["statistics"] = statistics_json(node);
  return out;
}

struct Sums {
  std::int64_t duration_ns = 0;
  std::int64_t flops = 0;
};

Json phase_json(const Graph& graph, const Phase& phase) {
  Sums sums;
  for (std::int64_t i = phase.first_node; i < phase.last_node; ++i) {
    const Node& node = graph.nodes[static_cast<std::size_t>(i)];
    sums.duration_ns += node.duration_ns;
    sums.flops += node.flops.value_or(0);
  }
  return {{"kind", phase.kind},
          {"first_token", phase.first_token},
          {"num_tokens", phase.num_tokens},
          {"first_node", phase.first_node},
          {"last_node", phase.last_node},
          {"duration_ns", sums.duration_ns},
          {"flops", sums.flops}};
}

Json outputs_json(const Graph& graph, const std::vector<OutputRef>& outputs) {
  Json list = Json::array();
  for (const OutputRef& output : outputs)
    list.push_back({{"node", label_of(graph, output.node)}, {"output", output.output}});
  return list;
}

Json validation_json(const Graph& graph, const Validation& validation) {
  Json differences = Json::array();
  for (const Difference& d : validation.differences) {
    differences.push_back({{"node", label_of(graph, d.node)},
                           {d.is_input ? "input" : "output", d.output},
                           {"max_abs_diff", d.max_abs_diff}});
  }
  Json skipped = Json::array();
  for (const Skipped& s : validation.skipped)
    skipped.push_back({{"node", label_of(graph, s.node)}, {"reason", s.reason}});
  return {{"equal", validation.equal},
          {"different", validation.different},
          {"skipped", validation.skipped.size()},
          {"differences", std::move(differences)},
          {"skipped_nodes", std::move(skipped)}};
}

}  // namespace

std::string dtype_text(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return "f64";
    case at::kFloat:
      return "f32";
    case at::kBFloat16:
      return "bf16";
    case at::kHalf:
      return "f16";
    case at::kLong:
      return "i64";
    case at::kInt:
      return "i32";
    case at::kShort:
      return "i16";
    case at::kChar:
      return "i8";
    case at::kByte:
      return "u8";
    case at::kBool:
      return "bool";
    default:
      return c10::toString(type);
  }
}

ModuleSums sums_of(const Graph& graph, const std::string& path) {
  ModuleSums out;
  std::set<std::string> counted;
  for (const Node& node : graph.nodes) {
    if (node.kind == NodeKind::kStage) continue;
    const bool inside = path.empty() || node.module == path || node.module.starts_with(path + ".");
    if (!inside) continue;
    ++out.nodes;
    out.duration_ns += node.duration_ns;
    out.flops += node.flops.value_or(0);
    for (const NodeInput& input : node.inputs) {
      if (input.node >= 0 || !counted.insert(input.parameter).second) continue;
      std::int64_t count = 1;
      for (const std::int64_t size : input.form.shape)
        count *= size;
      out.parameters += count;
    }
  }
  return out;
}

io::Json trace_json(const Graph& graph, const model::KDAConfig& config, const TraceAbout& about,
                    const std::optional<Validation>& validation) {
  Json out;
  out["format"] = "kda-trace";
  out["version"] = kTraceVersion;
  out["run"] = about.run;
  out["model"] = {{"parameters", about.num_parameters},
                  {"config", io::parse_json(config.to_json(), "config")}};
  out["tokens"] = about.tokens;
  out["phases"] = Json::array();
  for (const Phase& phase : graph.phases)
    out["phases"].push_back(phase_json(graph, phase));
  out["modules"] = Json::array();
  for (const Module& module : graph.modules) {
    const ModuleSums sums = sums_of(graph, module.path);
    out["modules"].push_back({{"path", module.path},
                              {"kind", module_kind(module.path, config)},
                              {"parent", module.parent},
                              {"calls", module.calls},
                              {"outputs", outputs_json(graph, module.outputs)},
                              {"duration_ns", sums.duration_ns},
                              {"flops", sums.flops},
                              {"parameters", sums.parameters}});
  }
  out["nodes"] = Json::array();
  const auto children = graph.children();
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    out["nodes"].push_back(node_json(graph, graph.nodes[i], children[i]));
  out["results"] = Json::array();
  for (const Result& result : graph.results) {
    out["results"].push_back({{"name", result.name},
                              {"node", label_of(graph, result.from.node)},
                              {"output", result.from.output}});
  }
  out["validation"] = validation ? validation_json(graph, *validation) : Json(nullptr);
  const ModuleSums sums = sums_of(graph, "");
  out["totals"] = {
      {"nodes", graph.nodes.size()}, {"duration_ns", sums.duration_ns}, {"flops", sums.flops}};
  return out;
}

}  // namespace kda::inspect
