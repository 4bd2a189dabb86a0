// Names of what a trace holds.
#include "inspect/select.h"

#include <gtest/gtest.h>

#include "inspect/kda_stages.h"
#include "inspect/session.h"
#include "model/model_test_support.h"

namespace kda::test {
namespace {

using inspect::Graph;
using Names = std::vector<std::string>;

Graph k3_graph(std::int64_t decode = 0) {
  const model::CausalLM lm = make_model(small_k3_config(), DType::kF32);
  return inspect::trace_model(lm, random_ids(9, 61, 21),
                              {.decode = decode, .backward = false, .statistics = false})
      .graph;
}

Names names(const Graph& graph, const std::string& list) {
  Names all;
  for (const inspect::Selection& item : inspect::select(graph, list))
    all.push_back(item.name + (item.output >= 0 ? "." + std::to_string(item.output) : ""));
  return all;
}

TEST(Select_Labels, WithAndWithoutPass) {
  const Graph graph = k3_graph(2);
  EXPECT_EQ(names(graph, "embedding_1_1:1"), Names{"embedding_1_1:1"});
  EXPECT_EQ(names(graph, "embedding_1_1"),
            (Names{"embedding_1_1:1", "embedding_1_1:2", "embedding_1_1:3"}));
  EXPECT_EQ(names(graph, "embedding_1_1:2,embedding_1_1:2"), Names{"embedding_1_1:2"});
}

TEST(Select_Ordinals, FromBothEnds) {
  const Graph graph = k3_graph();
  EXPECT_EQ(names(graph, "1"), Names{"embedding_1_1:1"});
  EXPECT_EQ(names(graph, "-1"), Names{graph.nodes.back().label});
  EXPECT_EQ(graph.nodes.back().module, "lm_head");
  expect_contains(error_of([&] { names(graph, "0"); }, ErrorCode::kInvalidArgument), "from 1 to");
  error_of([&] { names(graph, "100000"); }, ErrorCode::kInvalidArgument);
  error_of([&] { names(graph, "-100000"); }, ErrorCode::kInvalidArgument);
}

TEST(Select_Paths, ModulesAndQuantities) {
  const Graph graph = k3_graph();
  EXPECT_EQ(names(graph, "layers.3.self_attn"), Names{"model.layers.3.self_attn"});
  EXPECT_EQ(names(graph, "model.norm,lm_head"), (Names{"model.norm", "lm_head"}));
  EXPECT_EQ(names(graph, "layers.0.self_attn.beta"), Names{"model.layers.0.self_attn.beta"});
  EXPECT_EQ(names(graph, "decay"),
            (Names{"model.layers.0.self_attn.decay", "model.layers.1.self_attn.decay",
                   "model.layers.2.self_attn.decay"}));
  EXPECT_EQ(names(graph, "attention"),
            (Names{"model.layers.3.self_attn.attention", "model.layers.4.self_attn.attention"}));
}

TEST(Select_Outputs, OneOfSeveral) {
  const Graph graph = k3_graph();
  std::string linear;
  for (const inspect::Node& node : graph.nodes)
    if (node.function == "linear" && node.outputs.size() == 6 && linear.empty())
      linear = node.label;
  ASSERT_FALSE(linear.empty());
  EXPECT_EQ(names(graph, linear + ".2"), Names{linear + ".2"});
  expect_contains(error_of([&] { names(graph, linear + ".6"); }, ErrorCode::kInvalidArgument),
                  "outputs 0 to 5");
}

TEST(Select_Globs, OverAllNames) {
  const Graph graph = k3_graph();
  for (const std::string& name : names(graph, "*.self_attn.state*"))
    EXPECT_NE(name.find(".self_attn.state"), std::string::npos);
  EXPECT_EQ(names(graph, "*.self_attn.state*").size(), 9U) << "3 kinds, 3 layers";
  EXPECT_EQ(names(graph, "layers.[03].self_attn").size(), 2U);
  EXPECT_EQ(names(graph, "chunk_kda_*").size(), 3U);
  EXPECT_EQ(names(graph, "*").size(), inspect::all_selections(graph).size());
}

TEST(Select_Stages, OfOpenedOperators) {
  Graph graph = k3_graph();
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(graph.nodes.size()); ++i)
    if (graph.nodes[static_cast<std::size_t>(i)].function == "chunk_kda")
      inspect::open_operator(graph, i);
  EXPECT_EQ(names(graph, "chunk_kda_*/intra").size(), 3U);
  const std::string first = names(graph, "chunk_kda_*/wy")[0];
  EXPECT_EQ(names(graph, first), Names{first});
  const std::size_t colon = first.find(':');
  EXPECT_EQ(names(graph, first.substr(0, colon) + "/wy"), Names{first});
}

TEST(Select_Unknown, NamesTheNearest) {
  const Graph graph = k3_graph();
  const auto error = [&](const std::string& word) {
    return error_of([&] { names(graph, word); }, ErrorCode::kInvalidArgument);
  };
  expect_contains(error("layers.0.self_atn"), "model.layers.0.self_attn");
  expect_contains(error("embeding_1_1"), "embedding_1_1");
  expect_contains(error("dekay"), "decay");
  expect_contains(error("nothing*here"), "nearest");
  expect_contains(error("layers.9"), "nearest: model.layers.4 model.layers.3");
  expect_contains(error("layers.0.nothing.self_atn"), "model.layers.0.self_attn");
  expect_contains(error("decay,"), "expected names, got \"decay,\"");
  expect_contains(error(","), "expected names, got \",\"");
  EXPECT_EQ(inspect::nearest_names("linaer", {"linear", "line", "cat"}, 2),
            (Names{"line", "linear"}));
}

}  // namespace
}  // namespace kda::test
