#include <cstdio>
#include <memory>
#include <string>

#include "cli/app.h"
#include "cli/inspect_run.h"
#include "cli/table.h"
#include "inspect/extract.h"
#include "inspect/select.h"
#include "inspect/session.h"
#include "inspect/trace_json.h"
#include "kda/error.h"
#include "train/named_errors.h"

namespace kda::cli {
namespace {

struct ExtractCommand {
  InspectOptions inspect;
  std::string layers;
  std::string out;
  bool list = false;
};

std::string shape_text(const at::Tensor& tensor) {
  std::string out = inspect::dtype_text(tensor.scalar_type()) + "[";
  for (std::int64_t d = 0; d < tensor.dim(); ++d)
    out += (d > 0 ? "," : "") + std::to_string(tensor.size(d));
  return out + "]";
}

int print_names(const inspect::Graph& graph) {
  for (const inspect::Selection& item : inspect::all_selections(graph))
    std::printf("%s\n", item.name.c_str());
  return kDone;
}

int run_extract(ExtractCommand command) {
  if (command.list != (command.layers.empty() && command.out.empty())) {
    throw Error(ErrorCode::kInvalidArgument, "give --layers and --out, or --list alone");
  }
  if (!command.list && (command.layers.empty() || command.out.empty())) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(command.layers.empty() ? "--layers" : "--out") + ": missing");
  }
  if (!command.list && !command.out.ends_with(".safetensors")) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "--out: expected a file name that ends in .safetensors, got \"" + command.out + "\"");
  }
  InspectRun run = open_for_inspection(command.inspect, "extract");
  inspect::Trace trace = inspect::trace_model(run.model, run.ids, command.inspect.how);
  run.add_tokens(trace.ids);
  if (command.inspect.open.empty() && command.layers.find('/') != std::string::npos) {
    command.inspect.open = "all";  // "chunk_kda_1_9/gate"
  }
  open_operators(trace.graph, command.inspect.open);
  if (command.list) return print_names(trace.graph);
  const std::vector<inspect::Extracted> tensors = inspect::extract(
      trace.graph,
      train::named("--layers", [&] { return inspect::select(trace.graph, command.layers); }));
  if (tensors.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--layers: expected names of something with an output, got \"" + command.layers +
                    "\", which names only what has none");
  }
  train::named("--out",
               [&] { inspect::write_extracted(command.out, tensors, run.tokens, run.run); });
  std::printf("%s", run.text().c_str());
  Table table({"name", "shape", "kind", "axes"});
  for (const inspect::Extracted& item : tensors) {
    std::string axes;
    for (const std::string& axis : item.axes)
      axes += (axes.empty() ? "" : ", ") + axis;
    table.add({item.name, shape_text(item.value), item.kind, axes});
  }
  std::printf("%swrote %s\n", table.text().c_str(), command.out.c_str());
  return kDone;
}

}  // namespace

void add_extract(CLI::App& app) {
  CLI::App* verb = add_verb(
      app, "extract", "Write activations and quantities of a pass to a safetensors file",
      "  kda extract --ckpt runs/first --text \"The file \" --list\n"
      "  kda extract --ckpt runs/first --text \"The file \" --layers decay,beta,state_norm \\\n"
      "    --out kda.safetensors\n"
      "  kda extract --ckpt runs/first --ids 1,17,403 --out some.safetensors \\\n"
      "    --layers \"linear_1_1,layers.0.*,-1,layers.0.self_attn.attention_map\"\n"
      "  kda extract --ckpt runs/first --text \"The file \" --layers \"chunk_kda_1_*/intra\" \\\n"
      "    --out stages.safetensors\n"
      "\n"
      "Quantities: decay, beta, state, state_norm, state_singular_values, attention_map (KDA),\n"
      "attention (MLA), load, router_weights (experts), source_weights (attention residuals). "
      "Alone\n"
      "such a word means all layers.");
  auto command = std::make_shared<ExtractCommand>();
  add_inspect_options(verb, command->inspect);
  verb->add_option("--layers", command->layers,
                   "What to write, with commas: labels (with or without pass), module paths, "
                   "ordinals (negative: from the end), quantities, globs")
      ->type_name("LIST");
  verb->add_option("--out", command->out, "safetensors file to write")->type_name("FILE");
  verb->add_flag("--list", command->list, "Print all names that --layers knows, and stop");
  on_run(verb, [command] { return run_extract(*command); });
}

}  // namespace kda::cli
