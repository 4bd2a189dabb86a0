// Whole models, traced: same bits, whole graph, replay, FLOPs, gradients, decoding.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <set>

#include "inspect/backward.h"
#include "inspect/kda_stages.h"
#include "inspect/replay.h"
#include "inspect/session.h"
#include "inspect/trace_json.h"
#include "model/cost.h"
#include "model/model_test_support.h"

namespace kda::test {
namespace {

using inspect::Graph;
using inspect::Node;
using inspect::NodeKind;
using inspect::Trace;
using model::AttnResMode;
using model::CausalLM;
using model::KDAConfig;

CausalLM spread_model(const KDAConfig& config, DType compute = DType::kF32) {
  CausalLM lm = make_model(config, compute);
  spread_weights(lm, 31);
  return lm;
}

std::vector<KDAConfig> configs() {
  KDAConfig low_rank = small_config();
  low_rank.full_rank_gate = false;
  return {small_config(), low_rank, small_k3_config(), small_k3_config(AttnResMode::kBlock),
          small_k3_config(AttnResMode::kFull)};
}

std::int64_t count_of(const Graph& graph, const std::string& function) {
  std::int64_t count = 0;
  for (const Node& node : graph.nodes)
    count += node.function == function ? 1 : 0;
  return count;
}

TEST(Trace_Forward, SameBitsAsUntraced) {
  for (const KDAConfig& config : configs()) {
    for (const DType compute : {DType::kF32, DType::kBF16, DType::kF64}) {
      const CausalLM lm = spread_model(config, compute);
      const auto ids = random_ids(37, config.vocab_size, 3);
      const at::Tensor before = lm.logits(model::pack({ids}));
      const Trace trace = inspect::trace_model(lm, ids);
      EXPECT_TRUE(same_bits(trace.logits, before));
      EXPECT_TRUE(same_bits(lm.logits(model::pack({ids})), before));
    }
  }
}

TEST(Trace_Validate, EveryOperationReplaysBitForBit) {
  for (const KDAConfig& config : configs()) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      const CausalLM lm = spread_model(config, compute);
      const Trace trace = inspect::trace_model(lm, random_ids(37, config.vocab_size, 4));
      const inspect::Validation validation = inspect::validate(trace.graph);
      std::int64_t operations = 0;
      for (const Node& node : trace.graph.nodes)
        operations += node.kind == NodeKind::kOperation ? 1 : 0;
      EXPECT_EQ(validation.equal, operations);
      EXPECT_EQ(validation.different, 0);
      EXPECT_TRUE(validation.skipped.empty());
      EXPECT_GT(operations, 20);
    }
  }
}

TEST(Trace_Graph, IsOnePieceFromIdsToLogits) {
  const KDAConfig config = small_k3_config(AttnResMode::kBlock);
  const Trace trace = inspect::trace_model(spread_model(config), random_ids(9, 61, 5));
  const Graph& graph = trace.graph;
  std::set<std::int64_t> reached;
  std::vector<std::int64_t> open{graph.results.at(0).from.node};
  std::set<std::string> parameters;
  while (!open.empty()) {
    const std::int64_t index = open.back();
    open.pop_back();
    if (!reached.insert(index).second) continue;
    const Node& node = graph.nodes[static_cast<std::size_t>(index)];
    EXPECT_TRUE(node.kind == NodeKind::kInput || !graph.parents(node).empty() ||
                node.kind == NodeKind::kConstant)
        << node.label;
    for (const std::int64_t parent : graph.parents(node)) {
      EXPECT_LT(parent, index);
      open.push_back(parent);
    }
    for (const inspect::NodeInput& input : node.inputs)
      if (input.node < 0) parameters.insert(input.parameter);
  }
  EXPECT_TRUE(reached.contains(0)) << "the ids";
  EXPECT_EQ(graph.nodes[0].kind, NodeKind::kInput);
  // Every weight that takes part is read by a node that the logits depend on.
  const CausalLM lm = make_model(config, DType::kF32);
  for (const model::Parameter& p : lm.parameters()) {
    const bool unused = p.name.starts_with("model.layers.0.self_attention_res");
    EXPECT_EQ(parameters.contains(p.name), !unused) << p.name;
  }
}

TEST(Trace_Graph, OperationsOfALayerAreStable) {
  const KDAConfig config = small_config();
  const Trace trace = inspect::trace_model(spread_model(config), random_ids(9, 61, 6));
  std::vector<std::string> functions;
  for (const Node& node : trace.graph.nodes) {
    if (node.module.starts_with("model.layers.1") && node.kind == NodeKind::kOperation &&
        node.outputs.at(0).view_of < 0)
      functions.push_back(node.function);
  }
  EXPECT_EQ(functions, (std::vector<std::string>{"add_rms_norm", "linear", "linear", "short_conv",
                                                 "short_conv", "short_conv", "chunk_kda",
                                                 "gated_norm", "linear", "add_rms_norm", "linear",
                                                 "gated_activation", "linear"}));
  const std::vector<std::string> first = [&] {
    std::vector<std::string> labels;
    for (const Node& node : trace.graph.nodes)
      labels.push_back(node.label);
    return labels;
  }();
  const Trace again = inspect::trace_model(spread_model(config), random_ids(50, 61, 7));
  ASSERT_EQ(again.graph.nodes.size(), first.size());
  for (std::size_t i = 0; i < first.size(); ++i)
    EXPECT_EQ(again.graph.nodes[i].label, first[i]) << "labels depend on the model, not the text";
  const std::set<std::string> unique(first.begin(), first.end());
  EXPECT_EQ(unique.size(), first.size());
}

TEST(Trace_Modules, CarryTheNamesOfTheirWeights) {
  const KDAConfig config = small_k3_config(AttnResMode::kBlock);
  const CausalLM lm = spread_model(config);
  const Trace trace = inspect::trace_model(lm, random_ids(9, 61, 8));
  for (const Node& node : trace.graph.nodes) {
    for (const inspect::NodeInput& input : node.inputs) {
      if (input.node >= 0 || node.function == "attn_res") continue;
      if (input.parameter == "model.embed_tokens.weight" && node.module == "lm_head") continue;
      EXPECT_TRUE(input.parameter.starts_with(node.module + "."))
          << node.label << " in " << node.module << " reads " << input.parameter;
    }
  }
  const std::map<std::string, std::string> kinds{{"model", "model"},
                                                 {"model.layers.0", "layer"},
                                                 {"model.layers.0.self_attn", "kda"},
                                                 {"model.layers.3.self_attn", "mla"},
                                                 {"model.layers.0.mlp", "mlp"},
                                                 {"model.layers.1.block_sparse_moe", "moe"},
                                                 {"model.layers.1.block_sparse_moe.gate", "part"},
                                                 {"model.layers.1.mlp_res", "attn_res"},
                                                 {"model.output_attn_res", "attn_res"},
                                                 {"model.norm", "norm"},
                                                 {"model.embed_tokens", "embedding"},
                                                 {"lm_head", "head"}};
  for (const auto& [path, kind] : kinds) {
    EXPECT_NE(trace.graph.find_module(path), nullptr) << path;
    EXPECT_EQ(inspect::module_kind(path, config), kind) << path;
  }
}

TEST(Trace_Flops, AddUpToTheModelsFormula) {
  for (const KDAConfig& config : configs()) {
    const std::int64_t tokens = 29;
    const CausalLM lm = spread_model(config);
    const Trace trace = inspect::trace_model(lm, random_ids(tokens, config.vocab_size, 9));
    const double keys = static_cast<double>(tokens + 1) / 2;
    const double expected =
        model::flops_per_token(config).forward(keys) * static_cast<double>(tokens);
    EXPECT_DOUBLE_EQ(static_cast<double>(inspect::sums_of(trace.graph, "").flops), expected);
    const Trace training =
        inspect::trace_model(lm, random_ids(tokens + 1, config.vocab_size, 9),
                             {.decode = 0, .backward = true, .statistics = false});
    EXPECT_DOUBLE_EQ(static_cast<double>(inspect::sums_of(training.graph, "").flops), 3 * expected);
  }
}

TEST(Trace_Backward, SameGradientsAndReplays) {
  for (const KDAConfig& config : configs()) {
    const CausalLM lm = spread_model(config);
    const auto ids = random_ids(23, config.vocab_size, 10);
    const Trace trace =
        inspect::trace_model(lm, ids, {.decode = 0, .backward = true, .statistics = false});
    const model::PackedIds inputs = model::pack({{ids.begin(), ids.end() - 1}});
    const at::Tensor loss = lm.loss(inputs, index({ids.begin() + 1, ids.end()})).loss_sum;
    EXPECT_TRUE(same_bits(loss, trace.loss));
    torch::autograd::backward({loss}, {});
    const auto parameters = lm.parameters();
    ASSERT_EQ(trace.gradients.size(), parameters.size());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      at::Tensor tensor = parameters[i].tensor;
      ASSERT_EQ(trace.gradients[i].defined(), tensor.grad().defined()) << parameters[i].name;
      if (tensor.grad().defined()) {
        EXPECT_TRUE(same_bits(trace.gradients[i], tensor.grad())) << parameters[i].name;
      }
      tensor.mutable_grad().reset();
    }
    const inspect::Validation validation = inspect::validate(trace.graph);
    EXPECT_EQ(validation.different, 0);
    EXPECT_GT(validation.equal, 60);
    std::int64_t leaves = 0;
    for (const inspect::Skipped& skipped : validation.skipped) {
      leaves += 1;
      EXPECT_EQ(trace.graph.nodes[static_cast<std::size_t>(skipped.node)].function,
                "accumulate_grad");
    }
    EXPECT_EQ(leaves, count_of(trace.graph, "accumulate_grad"));
    std::int64_t with_gradient = 0;
    for (const at::Tensor& gradient : trace.gradients)
      with_gradient += gradient.defined() ? 1 : 0;
    EXPECT_EQ(leaves, with_gradient);
    // Every forward call of the operator has its gradient, in its module.
    EXPECT_EQ(count_of(trace.graph, "chunk_backward"), count_of(trace.graph, "chunk_kda"));
    for (const Node& node : trace.graph.nodes) {
      if (node.function != "chunk_backward") continue;
      ASSERT_GE(node.gradient_of, 0);
      const Node& forward = trace.graph.nodes[static_cast<std::size_t>(node.gradient_of)];
      EXPECT_EQ(forward.function, "chunk_kda");
      EXPECT_EQ(forward.module, node.module);
    }
  }
}

TEST(Trace_Backward, NamesOfGradients) {
  EXPECT_EQ(inspect::gradient_name("MulBackward0"), "mul_backward");
  EXPECT_EQ(inspect::gradient_name("torch::autograd::AccumulateGrad"), "accumulate_grad");
  EXPECT_EQ(inspect::gradient_name(
                "torch::autograd::CppNode<kda::model::(anonymous namespace)::LinearFunction>"),
            "linear_backward");
  EXPECT_EQ(inspect::gradient_name(
                "torch::autograd::CppNode<kda::model::(anonymous namespace)::HostAttention>"),
            "host_attention_backward");
}

TEST(Trace_Decode, StepsArePassesThroughTheSamePlaces) {
  const KDAConfig config = small_k3_config(AttnResMode::kBlock);
  const CausalLM lm = spread_model(config);
  const auto ids = random_ids(11, config.vocab_size, 11);
  const Trace trace =
      inspect::trace_model(lm, ids, {.decode = 3, .backward = false, .statistics = false});
  ASSERT_EQ(trace.ids.size(), ids.size() + 3);
  ASSERT_EQ(trace.graph.phases.size(), 4U);
  EXPECT_EQ(trace.graph.phases[3].kind, "decode");
  EXPECT_EQ(trace.graph.phases[3].first_token, 13);
  // The same by hand.
  model::DecodeState state = lm.new_state(1);
  at::Tensor logits = lm.prefill(model::pack({ids}), state);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(logits.argmax(1).item<std::int64_t>(), trace.ids[ids.size() + i]);
    logits = lm.step(logits.argmax(1), state);
  }
  EXPECT_TRUE(same_bits(logits, trace.logits));
  std::map<std::string, std::vector<std::int64_t>> passes;
  for (const Node& node : trace.graph.nodes)
    if (node.function == "recurrent_kda_pool") passes[node.module].push_back(node.pass);
  EXPECT_EQ(passes.size(), 3U);
  for (const auto& [module, list] : passes)
    EXPECT_EQ(list, (std::vector<std::int64_t>{1, 2, 3})) << module;
  // The state goes from call to call.
  for (const Node& node : trace.graph.nodes) {
    if (node.function != "recurrent_kda_pool") continue;
    bool from_state = false;
    for (const std::int64_t parent : trace.graph.parents(node)) {
      const std::string& f = trace.graph.nodes[static_cast<std::size_t>(parent)].function;
      from_state = from_state || (node.pass == 1 ? f == "chunk_kda" : f == "recurrent_kda_pool");
    }
    EXPECT_TRUE(from_state) << node.label;
  }
  const inspect::Validation validation = inspect::validate(trace.graph);
  EXPECT_EQ(validation.different, 0);
  EXPECT_TRUE(validation.skipped.empty());
}

TEST(Trace_Statistics, AreOfTheOutputs) {
  const Trace trace = inspect::trace_model(spread_model(small_config()), random_ids(9, 61, 12),
                                           {.decode = 0, .backward = false, .statistics = true});
  std::int64_t seen = 0;
  for (const Node& node : trace.graph.nodes) {
    if (node.kind != NodeKind::kOperation) continue;
    ASSERT_EQ(node.statistics.size(), node.outputs.size());
    if (node.outputs[0].form.dtype != at::kFloat) continue;
    const at::Tensor value = node.outputs[0].value.to(at::kDouble);
    EXPECT_EQ(node.statistics[0].max, value.max().item<double>());
    EXPECT_EQ(node.statistics[0].min, value.min().item<double>());
    EXPECT_NEAR(node.statistics[0].rms, value.pow(2).mean().sqrt().item<double>(), 1e-12);
    EXPECT_EQ(node.statistics[0].nonfinite, 0);
    ++seen;
  }
  EXPECT_GT(seen, 20);
}

TEST(Trace_Refuses, WhatCannotBe) {
  const CausalLM lm = make_model(small_config(), DType::kF32);
  const auto refused = [&](const std::vector<std::int64_t>& ids, const inspect::TraceOptions& how) {
    return error_of([&] { inspect::trace_model(lm, ids, how); }, ErrorCode::kInvalidArgument);
  };
  expect_contains(refused({}, {}), "at least one");
  expect_contains(refused({1}, {.decode = 0, .backward = true, .statistics = false}), "two tokens");
  expect_contains(refused({1, 2}, {.decode = 2, .backward = true, .statistics = false}), "decode");
  expect_contains(refused({1, 61}, {}), "61");
  EXPECT_EQ(model::call_recorder, nullptr);
}

}  // namespace
}  // namespace kda::test
