// JSON, DOT and safetensors of a trace.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "inspect/extract.h"
#include "inspect/kda_stages.h"
#include "inspect/session.h"
#include "inspect/trace_dot.h"
#include "inspect/trace_json.h"
#include "io/safetensors.h"
#include "model/model_test_support.h"

namespace kda::test {
namespace {

using inspect::Trace;
using io::Json;

struct Sample {
  model::CausalLM lm = make_model(small_k3_config(model::AttnResMode::kBlock), DType::kF32);
  Trace trace = inspect::trace_model(lm, random_ids(9, 61, 31),
                                     {.decode = 0, .backward = false, .statistics = true});
  Json json() {
    inspect::TraceAbout about{{{"program", "test"}}, Json::array(), lm.num_parameters()};
    return inspect::trace_json(trace.graph, lm.config(), about, inspect::validate(trace.graph));
  }
};

std::string kind_of(const Json& value) {
  if (value.is_number_integer()) return "integer";
  if (value.is_number()) return "number";
  return value.type_name();
}

// Every field of the documented form is there with its type; the example is read the same way.
void check_form(const Json& trace) {
  ASSERT_EQ(trace.at("format"), "kda-trace");
  ASSERT_EQ(trace.at("version"), 1);
  for (const char* key :
       {"run", "model", "tokens", "phases", "modules", "nodes", "results", "validation", "totals"})
    EXPECT_TRUE(trace.contains(key)) << key;
  const std::map<std::string, std::string> fields{
      {"label", "string"},     {"function", "string"},   {"nth", "integer"},
      {"ordinal", "integer"},  {"pass", "integer"},      {"kind", "string"},
      {"phase", "integer"},    {"module", "string"},     {"inputs", "array"},
      {"outputs", "array"},    {"parents", "array"},     {"children", "array"},
      {"parameters", "array"}, {"attributes", "object"}, {"in_place", "array"},
      {"random", "boolean"},   {"calls", "array"},       {"duration_ns", "integer"},
      {"stages", "array"}};
  std::set<std::string> labels;
  std::map<std::string, std::set<std::string>> children;
  for (const Json& node : trace["nodes"]) {
    for (const auto& [key, type] : fields)
      EXPECT_EQ(kind_of(node.at(key)), type) << key;
    if (!node.at("statistics").is_null()) {
      ASSERT_EQ(node["statistics"].size(), node["outputs"].size());
      for (std::size_t i = 0; i < node["outputs"].size(); ++i) {
        const bool real =
            node["outputs"][i]["dtype"].get<std::string>().find('f') != std::string::npos;
        EXPECT_EQ(node["statistics"][i].is_null(), !real) << node["label"];
      }
    }
    for (const char* key : {"flops", "stage_of", "gradient_of", "statistics"})
      EXPECT_TRUE(node.contains(key)) << key;
    EXPECT_TRUE(labels.insert(node["label"]).second) << node["label"];
    for (const Json& parent : node["parents"])
      children[parent].insert(node["label"].get<std::string>());
    for (const Json& input : node["inputs"]) {
      EXPECT_NE(input.contains("node"), input.contains("parameter"));
      EXPECT_TRUE(input.at("shape").is_array());
      EXPECT_TRUE(input.at("argument").is_string());
    }
    for (const Json& output : node["outputs"]) {
      for (const char* key : {"shape", "dtype", "strides", "view_of"})
        EXPECT_TRUE(output.contains(key)) << key;
    }
  }
  for (const Json& node : trace["nodes"]) {
    for (const Json& parent : node["parents"])
      EXPECT_TRUE(labels.contains(parent)) << parent;
    EXPECT_EQ(node["children"].get<std::set<std::string>>(), children[node["label"]]);
  }
  std::set<std::string> paths{""};
  for (const Json& module : trace["modules"]) {
    EXPECT_TRUE(paths.contains(module.at("parent"))) << "parents come first";
    paths.insert(module.at("path"));
    for (const char* key : {"kind", "calls", "outputs", "duration_ns", "flops", "parameters"})
      EXPECT_TRUE(module.contains(key)) << key;
  }
  for (const Json& phase : trace["phases"]) {
    for (const char* key :
         {"kind", "first_token", "num_tokens", "first_node", "last_node", "duration_ns", "flops"})
      EXPECT_TRUE(phase.contains(key)) << key;
  }
  for (const Json& result : trace["results"])
    EXPECT_TRUE(labels.contains(result.at("node")));
}

TEST(TraceJson_Form, IsTheDocumentedOne) {
  Sample sample;
  inspect::open_operator(sample.trace.graph, [&] {
    for (std::size_t i = 0; i < sample.trace.graph.nodes.size(); ++i)
      if (sample.trace.graph.nodes[i].function == "chunk_kda") return static_cast<std::int64_t>(i);
    return std::int64_t{0};
  }());
  const Json json = sample.json();
  check_form(json);
  EXPECT_EQ(json["validation"]["different"], 0);
  EXPECT_GT(json["validation"]["equal"], 20);
  EXPECT_EQ(json["totals"]["nodes"], sample.trace.graph.nodes.size());
  const Json copy = io::parse_json(json.dump(), "trace", {.max_depth = 32, .max_bytes = 64u << 20});
  EXPECT_EQ(copy, json);
  bool opened = false;
  for (const Json& node : json["nodes"])
    opened = opened || node["stages"].size() == 7;
  EXPECT_TRUE(opened);
}

TEST(TraceJson_Example, HasTheSameForm) {
  const std::string folder = KDA_INSPECT_TEST_DATA;
  check_form(io::read_json_file(folder + "/example.trace.json"));
  const auto file = io::SafetensorsFile::open(folder + "/example.tensors.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "kda-extract");
}

TEST(TraceDot_Text, HasEveryNodeAndEdge) {
  Sample sample;
  const std::string dot = inspect::to_dot(sample.trace.graph);
  for (const inspect::Node& node : sample.trace.graph.nodes)
    EXPECT_NE(dot.find("\"" + node.label + "\" [label="), std::string::npos) << node.label;
  EXPECT_NE(dot.find("subgraph \"cluster_model.layers.0.self_attn\""), std::string::npos);
  std::int64_t edges = 0;
  std::int64_t expected = 0;
  for (std::size_t at = 0; (at = dot.find(" -> ", at)) != std::string::npos; ++at)
    ++edges;
  for (const inspect::Node& node : sample.trace.graph.nodes) {
    for (const inspect::NodeInput& input : node.inputs)
      expected += (input.node >= 0 ? 1 : 0) + static_cast<std::int64_t>(input.writers.size());
  }
  EXPECT_EQ(edges, expected);
  const std::string part = inspect::to_dot(sample.trace.graph, {"layers.1"});
  EXPECT_NE(part.find("cluster_model.layers.1.self_attn"), std::string::npos);
  EXPECT_EQ(part.find("cluster_model.layers.0"), std::string::npos);
}

TEST(TraceDot_Only, EveryItemNamesSomething) {
  Sample sample;
  const auto refused = [&](const std::string& only) {
    return error_of([&] { inspect::to_dot(sample.trace.graph, {only}); },
                    ErrorCode::kInvalidArgument);
  };
  expect_contains(refused("layers.0.self_atn"), "model.layers.0.self_attn");
  expect_contains(refused("layers.0,nosuch"), "'nosuch'");
  expect_contains(refused(","), "expected names");
  const std::string label = sample.trace.graph.nodes.back().label;
  const std::string part = inspect::to_dot(sample.trace.graph, {label.substr(0, label.find(':'))});
  EXPECT_NE(part.find("\"" + label + "\" [label="), std::string::npos);
}

TEST(TraceDot_Svg, DrawsABackwardPass) {
  if (std::system("dot -V >/dev/null 2>&1") != 0) GTEST_SKIP() << "needs Graphviz";
  model::KDAConfig config = model::KDAConfig::preset("k3-tiny");
  config.vocab_size = 61;
  const model::CausalLM lm = make_model(config, DType::kF32);
  Trace trace = inspect::trace_model(lm, random_ids(4, 61, 33),
                                     {.decode = 0, .backward = true, .statistics = false});
  for (std::size_t i = 0, count = trace.graph.nodes.size(); i < count; ++i)
    if (trace.graph.nodes[i].function == "chunk_kda")
      inspect::open_operator(trace.graph, static_cast<std::int64_t>(i));
  const TemporaryFolder folder;
  inspect::draw_svg(inspect::to_dot(trace.graph), folder.file("graph.svg"));
  std::ifstream file(folder.file("graph.svg"));
  std::stringstream text;
  text << file.rdbuf();
  const std::string svg = text.str();
  std::size_t drawn = 0;
  for (std::size_t at = 0; (at = svg.find("class=\"node\"", at)) != std::string::npos; ++at)
    ++drawn;
  EXPECT_EQ(drawn, trace.graph.nodes.size());
  expect_contains(svg, "chunk_backward");
}

TEST(TraceDot_Svg, IsDrawnOrSaysWhatIsMissing) {
  Sample sample;
  const TemporaryFolder folder;
  const std::string svg = folder.file("graph.svg");
  const std::string dot = inspect::to_dot(sample.trace.graph, {"layers.0"});
  if (std::system("dot -V >/dev/null 2>&1") != 0) {
    expect_contains(error_of([&] { inspect::draw_svg(dot, svg); }, ErrorCode::kUnsupported),
                    "graphviz");
    EXPECT_FALSE(std::filesystem::exists(svg));
    return;
  }
  inspect::draw_svg(dot, svg);
  std::ifstream file(svg);
  std::stringstream text;
  text << file.rdbuf();
  expect_contains(text.str(), "</svg>");
  expect_contains(text.str(), "chunk_kda");
  expect_contains(
      error_of([&] { inspect::draw_svg("digraph {", folder.file("broken.svg")); }, ErrorCode::kIo),
      "--only");
  EXPECT_FALSE(std::filesystem::exists(folder.file("broken.svg")));
}

TEST(Extract_File, HoldsTheValuesAndWhatTheyAre) {
  Sample sample;
  const inspect::Graph& graph = sample.trace.graph;
  const TemporaryFolder folder;
  const std::string path = folder.file("t.safetensors");
  const auto tensors =
      inspect::extract(graph, inspect::select(graph, "-1,layers.0,embed_tokens,layers.0.*,load"));
  inspect::write_extracted(path, tensors, Json::array({{{"id", 1}, {"text", "x"}}}),
                           {{"program", "test"}});
  const auto file = io::SafetensorsFile::open(path);
  EXPECT_EQ(file.metadata().at("format"), "kda-extract");
  EXPECT_EQ(file.metadata().at("version"), "1");
  EXPECT_EQ(Json::parse(file.metadata().at("tokens"))[0]["text"], "x");
  const Json about = Json::parse(file.metadata().at("tensors"));
  ASSERT_EQ(about.size(), tensors.size());
  ASSERT_EQ(file.names().size(), tensors.size());
  for (const inspect::Extracted& item : tensors) {
    const io::StTensor& stored = file.info(item.name);
    EXPECT_EQ(stored.shape, item.value.sizes().vec());
    ASSERT_EQ(stored.data.size(), item.value.nbytes());
    EXPECT_EQ(std::memcmp(stored.data.data(), item.value.const_data_ptr(), stored.data.size()), 0);
    EXPECT_EQ(about[item.name]["axes"].size(), stored.shape.size()) << item.name;
    EXPECT_EQ(about[item.name]["first_token"], 0) << item.name;
    EXPECT_EQ(about[item.name]["num_tokens"], 9) << item.name;
  }
  // The last operation is the head: its values are the logits.
  EXPECT_TRUE(same_bits(tensors[0].value, sample.trace.logits));
  EXPECT_EQ(about["model.layers.0.self_attn.decay"]["axes"], Json({"token", "head", "channel"}));
}

TEST(Extract_Modules, AreWhatAnObserverSees) {
  for (const auto mode : {model::AttnResMode::kOff, model::AttnResMode::kBlock}) {
    const model::CausalLM lm = make_model(small_k3_config(mode), DType::kBF16);
    const auto ids = random_ids(9, 61, 32);
    std::map<std::string, at::Tensor> seen;
    const model::ActivationObserver observer =
        [&](const std::string& name, const at::Tensor& value) { seen[name] = value.clone(); };
    model::ForwardOptions options;
    options.observer = &observer;
    lm.logits(model::pack({ids}), options);
    const Trace trace = inspect::trace_model(lm, ids);
    const auto value = [&](const std::string& name) {
      return inspect::extract(trace.graph, inspect::select(trace.graph, name)).at(0).value;
    };
    for (const char* layer : {"0", "1", "3", "4"}) {
      const std::string path = std::string("layers.") + layer;
      EXPECT_TRUE(same_bits(value(path), seen.at(path))) << path;
      EXPECT_TRUE(same_bits(value(path + ".self_attn"), seen.at(path + ".attn"))) << path;
    }
    EXPECT_TRUE(same_bits(value("layers.0.mlp"), seen.at("layers.0.mlp")));
    EXPECT_TRUE(same_bits(value("layers.1.block_sparse_moe"), seen.at("layers.1.mlp")));
    EXPECT_TRUE(same_bits(value("embed_tokens"), seen.at("embed")));
    EXPECT_TRUE(same_bits(value("norm"), seen.at("norm")));
  }
}

}  // namespace
}  // namespace kda::test
