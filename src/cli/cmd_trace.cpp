#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "cli/app.h"
#include "cli/inspect_run.h"
#include "cli/no_effect.h"
#include "cli/table.h"
#include "inspect/replay.h"
#include "inspect/session.h"
#include "inspect/trace_dot.h"
#include "inspect/trace_json.h"
#include "io/atomic_file.h"
#include "kda/error.h"
#include "model/batch.h"
#include "train/named_errors.h"
#include "train/units.h"

namespace kda::cli {
namespace {

struct TraceCommand {
  InspectOptions inspect;
  std::string out;
  std::string dot;
  std::string svg;
  std::string only;
  bool validate = false;
  bool nodes = false;
  bool json = false;
};

std::string milliseconds(std::int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", static_cast<double>(ns) / 1e6);
  return text;
}

std::string count_text(std::int64_t value) {
  return value == 0 ? "-" : train::short_count(static_cast<double>(value));
}

std::string form_text(const inspect::TensorForm& form) {
  std::string out = inspect::dtype_text(form.dtype) + "[";
  for (std::size_t i = 0; i < form.shape.size(); ++i)
    out += (i > 0 ? "," : "") + std::to_string(form.shape[i]);
  return out + "]";
}

std::string module_table(const inspect::Graph& graph, const model::KDAConfig& config) {
  Table table({"module", "kind", ">operations", ">ms", ">FLOPs", ">weights"});
  for (const inspect::Module& module : graph.modules) {
    const inspect::ModuleSums sums = inspect::sums_of(graph, module.path);
    table.add({module.path, inspect::module_kind(module.path, config), std::to_string(sums.nodes),
               milliseconds(sums.duration_ns), count_text(sums.flops),
               count_text(sums.parameters)});
  }
  return table.text();
}

std::string node_table(const inspect::Graph& graph) {
  Table table({"label", "module", "output", "parents"});
  for (const inspect::Node& node : graph.nodes) {
    std::string outputs;
    for (const inspect::NodeOutput& output : node.outputs)
      outputs += (outputs.empty() ? "" : " ") + form_text(output.form);
    std::string parents;
    for (const std::int64_t parent : graph.parents(node))
      parents += (parents.empty() ? "" : " ") + graph.nodes[static_cast<std::size_t>(parent)].label;
    table.add({node.label, node.module, outputs, parents});
  }
  return table.text();
}

// The traced pass and one that nobody watches, which also pays for what only a first pass costs.
inspect::Trace trace_beside_untraced(const InspectRun& run, const inspect::TraceOptions& how) {
  const at::Tensor plain = run.model.logits(model::pack({run.ids}));
  inspect::Trace trace = inspect::trace_model(run.model, run.ids, how);
  const bool comparable = !how.backward && how.decode == 0;
  if (comparable && !inspect::same_bits(plain, trace.logits)) {
    throw Error(ErrorCode::kInternal, "the logits of the traced pass differ from an untraced one");
  }
  return trace;
}

void print_validation(const inspect::Graph& graph, const inspect::Validation& validation) {
  std::printf("replayed: %lld operations equal bit for bit, %lld different, %zu skipped\n",
              static_cast<long long>(validation.equal),
              static_cast<long long>(validation.different), validation.skipped.size());
  for (const inspect::Difference& d : validation.differences) {
    std::printf("  %s %s %lld: largest difference %g\n",
                graph.nodes[static_cast<std::size_t>(d.node)].label.c_str(),
                d.is_input ? "input" : "output", static_cast<long long>(d.output), d.max_abs_diff);
  }
}

int run_trace(const CLI::App* verb, const TraceCommand& command) {
  if (command.dot.empty() && command.svg.empty()) {
    refuse_given(verb, {"--only"}, "without --dot or --svg");
  }
  if (command.json) refuse_given(verb, {"--nodes"}, "with --json");
  InspectRun run = open_for_inspection(command.inspect, "trace");
  inspect::Trace trace = trace_beside_untraced(run, command.inspect.how);
  run.add_tokens(trace.ids);
  inspect::Graph& graph = trace.graph;
  open_operators(graph, command.inspect.open);
  std::optional<inspect::Validation> validation;
  if (command.validate) validation = inspect::validate(graph);
  // Before any file is written: --only may name nothing.
  std::string dot;
  if (!command.dot.empty() || !command.svg.empty()) {
    dot = train::named("--only", [&] { return inspect::to_dot(graph, {command.only}); });
  }
  const inspect::TraceAbout about{run.run, run.tokens, run.model.num_parameters()};
  if (command.json || !command.out.empty()) {
    const io::Json json = inspect::trace_json(graph, run.model.config(), about, validation);
    if (command.json) std::printf("%s\n", json.dump().c_str());
    if (!command.out.empty()) {
      train::named("--out", [&] { io::write_json_file(command.out, json); });
    }
  }
  if (!command.dot.empty()) {
    train::named("--dot", [&] { io::write_file_atomic(command.dot, dot); });
  }
  if (!command.svg.empty()) {
    train::named("--svg", [&] { inspect::draw_svg(dot, command.svg); });
  }
  if (!command.json) {
    std::printf("%s", run.text().c_str());
    std::printf("%s", command.nodes ? node_table(graph).c_str()
                                    : module_table(graph, run.model.config()).c_str());
    const inspect::ModuleSums all = inspect::sums_of(graph, "");
    std::printf("%lld operations, %s ms, %s FLOPs in products, convolutions and attention\n",
                static_cast<long long>(all.nodes), milliseconds(all.duration_ns).c_str(),
                count_text(all.flops).c_str());
    if (validation) print_validation(graph, *validation);
    for (const std::string& file : {command.out, command.dot, command.svg})
      if (!file.empty()) std::printf("wrote %s\n", file.c_str());
  }
  return validation && validation->different > 0 ? kFailed : kDone;
}

}  // namespace

void add_trace(CLI::App& app) {
  CLI::App* verb = add_verb(
      app, "trace", "Record one pass of a model as a graph of operations",
      "  kda trace --ckpt runs/first --text \"The file \"\n"
      "  kda trace --ckpt runs/first --text \"The file \" --validate --out trace.json\n"
      "  kda trace --ckpt runs/first --ids 1,17,403 --open all --nodes\n"
      "  kda trace --ckpt runs/first --text \"The file \" --only layers.0 --svg layer0.svg\n"
      "  kda trace --ckpt runs/first --prompt \"The file \" --decode 8 --out decode.json\n"
      "  kda trace --ckpt runs/first --text \"The file \" --backward --out train.json\n"
      "\n"
      "A label like linear_2_5:1 is function, how many-th of that function, ordinal among all\n"
      "operations, pass. Exit code 1 when --validate finds a difference.");
  auto command = std::make_shared<TraceCommand>();
  add_inspect_options(verb, command->inspect);
  verb->add_option("--out", command->out, "Write the graph as JSON (docs/inspection.md)")
      ->type_name("FILE");
  verb->add_option("--dot", command->dot, "Write the graph as DOT text")->type_name("FILE");
  verb->add_option("--svg", command->svg, "Draw the graph; needs Graphviz' program dot")
      ->type_name("FILE");
  verb->add_option("--only", command->only,
                   "With --dot and --svg: modules and labels to draw, with commas, globs allowed")
      ->type_name("LIST");
  verb->add_flag("--validate", command->validate,
                 "Run every operation again alone, from its recorded inputs, and compare the bits");
  verb->add_flag("--statistics", command->inspect.how.statistics,
                 "Record smallest, largest, mean and root mean square of every output");
  verb->add_flag("--nodes", command->nodes, "Print all operations instead of the modules");
  verb->add_flag("--json", command->json, "The graph as JSON on standard output, nothing else");
  on_run(verb, [verb, command] { return run_trace(verb, *command); });
}

}  // namespace kda::cli
