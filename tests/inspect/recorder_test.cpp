// The recorder alone, on small functions of torch operators.
#include "inspect/recorder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <thread>

#include "inspect/replay.h"
#include "model/model_test_support.h"
#include "model/observe.h"

namespace kda::test {
namespace {

using inspect::Graph;
using inspect::Node;
using inspect::NodeKind;
using inspect::Recorder;

Graph record(const std::vector<at::Tensor>& inputs, const std::function<at::Tensor()>& body) {
  Recorder recorder;
  recorder.begin_phase("forward", 0, 0);
  for (const at::Tensor& input : inputs)
    recorder.name_input(input);
  const at::Tensor out = body();
  recorder.end_phase();
  recorder.name_result("out", out);
  return recorder.finish();
}

const Node& node_of(const Graph& graph, const std::string& label) {
  for (const Node& node : graph.nodes)
    if (node.label == label) return node;
  ADD_FAILURE() << "no node " << label;
  return graph.nodes.front();
}

std::vector<std::string> labels_of(const Graph& graph) {
  std::vector<std::string> all;
  for (const Node& node : graph.nodes)
    all.push_back(node.label);
  return all;
}

std::vector<std::string> parents_of(const Graph& graph, const std::string& label) {
  std::vector<std::string> all;
  for (const std::int64_t parent : graph.parents(node_of(graph, label)))
    all.push_back(graph.nodes[static_cast<std::size_t>(parent)].label);
  return all;
}

using Names = std::vector<std::string>;

TEST(Recorder_Labels, FunctionCountOrdinalPass) {
  const at::Tensor x = random_tensor({3, 4}, 1);
  const Graph graph = record({x}, [&] {
    const at::Tensor s = x.sin();
    const at::Tensor c = x.cos();
    return (s + c).sin();
  });
  EXPECT_EQ(labels_of(graph),
            (Names{"input_1_0:1", "sin_1_1:1", "cos_1_2:1", "add_1_3:1", "sin_2_4:1"}));
  EXPECT_EQ(parents_of(graph, "add_1_3:1"), (Names{"sin_1_1:1", "cos_1_2:1"}));
  EXPECT_EQ(graph.results.front().from.node, 4);
}

TEST(Recorder_Passes, SamePlaceInALaterPhaseKeepsItsNumbers) {
  Recorder recorder;
  at::Tensor x = random_tensor({4}, 2);
  for (int phase = 0; phase < 3; ++phase) {
    recorder.begin_phase("decode", phase, 1);
    x = model::in_module("layer", [&] { return x.sin().cos(); });
    recorder.end_phase();
  }
  recorder.name_result("out", x);
  const Graph graph = recorder.finish();
  EXPECT_EQ(labels_of(graph), (Names{"constant_1_0:1", "sin_1_1:1", "cos_1_2:1", "sin_1_1:2",
                                     "cos_1_2:2", "sin_1_1:3", "cos_1_2:3"}));
  EXPECT_EQ(parents_of(graph, "sin_1_1:3"), Names{"cos_1_2:2"});
  ASSERT_EQ(graph.modules.size(), 1U);
  EXPECT_EQ(graph.modules[0].calls, 3);
  EXPECT_EQ(graph.modules[0].outputs.at(0).node, 6);
}

TEST(Recorder_Inside, OperatorsOfACallAreItsNames) {
  const at::Tensor a = random_tensor({2, 3, 4}, 3);
  const at::Tensor b = random_tensor({4, 5}, 4);
  const Graph graph = record({a, b}, [&] { return a.matmul(b); });
  ASSERT_EQ(graph.nodes.size(), 3U);
  const Node& node = graph.nodes[2];
  EXPECT_EQ(node.function, "matmul");
  EXPECT_NE(std::find(node.calls.begin(), node.calls.end(), "aten::mm"), node.calls.end());
  EXPECT_EQ(node.flops, 2 * 2 * 3 * 4 * 5);
}

TEST(Recorder_Views, KnowWhoseMemoryTheyShare) {
  const at::Tensor x = random_tensor({4, 6}, 5);
  const Graph graph = record({x}, [&] { return x.narrow(0, 1, 2).t() + 1.0; });
  EXPECT_EQ(node_of(graph, "narrow_1_1:1").outputs[0].view_of, 0);
  EXPECT_EQ(node_of(graph, "t_1_2:1").outputs[0].view_of, 0);
  EXPECT_EQ(node_of(graph, "add_1_3:1").outputs[0].view_of, -1);
  EXPECT_EQ(node_of(graph, "narrow_1_1:1").outputs[0].form.strides,
            (std::vector<std::int64_t>{6, 1}));
}

TEST(Recorder_Nothing, ConversionsWithoutWorkAndNumbersAreNoNodes) {
  const at::Tensor x = random_tensor({4}, 6);
  const Graph graph = record({x}, [&] {
    const at::Tensor same = x.to(at::kDouble).contiguous();
    EXPECT_TRUE(same.is_same(x));
    EXPECT_NE(x.sum().item<double>(), 0.0);
    return same.exp();
  });
  // The sum is an operation that led to a number only; outside of modules everything is kept.
  EXPECT_EQ(labels_of(graph), (Names{"input_1_0:1", "sum_1_1:1", "exp_1_2:1"}));
}

TEST(Recorder_InPlace, EveryNodeKeepsTheValuesOfThen) {
  const at::Tensor x = random_tensor({4, 4}, 7);
  const at::Tensor before = x.clone();
  const Graph graph = record({x}, [&] {
    const at::Tensor y = x * 2.0;
    const at::Tensor z = y.sin();
    y.narrow(0, 1, 2).mul_(3.0);  // behind y's back
    y.add_(1.0);
    return y + z;
  });
  EXPECT_EQ(labels_of(graph), (Names{"input_1_0:1", "mul_1_1:1", "sin_1_2:1", "narrow_1_3:1",
                                     "mul__1_4:1", "add__1_5:1", "add_1_6:1"}));
  EXPECT_TRUE(same_bits(node_of(graph, "mul_1_1:1").outputs[0].value, before * 2.0));
  EXPECT_TRUE(same_bits(node_of(graph, "sin_1_2:1").inputs[0].value, before * 2.0));
  const Node& scaled = node_of(graph, "mul__1_4:1");
  EXPECT_EQ(scaled.changed, std::vector<std::int64_t>{0});
  EXPECT_TRUE(same_bits(scaled.inputs[0].value, (before * 2.0).narrow(0, 1, 2)));
  EXPECT_TRUE(same_bits(scaled.inputs[0].written, (before * 2.0).narrow(0, 1, 2) * 3.0));
  // y is what mul made and what mul_ wrote into.
  EXPECT_EQ(parents_of(graph, "add__1_5:1"), (Names{"mul_1_1:1", "mul__1_4:1"}));
  EXPECT_EQ(parents_of(graph, "add_1_6:1"), (Names{"add__1_5:1", "sin_1_2:1"}));
  const inspect::Validation validation = inspect::validate(graph);
  EXPECT_EQ(validation.equal, 6);
  EXPECT_EQ(validation.different, 0);
}

TEST(Recorder_Random, ReplaysWithTheGeneratorOfThen) {
  const at::Tensor x = random_tensor({64}, 8);
  const Graph graph =
      record({x}, [&] { return at::dropout(x, 0.5, /*train=*/true) + at::bernoulli(x.abs()); });
  bool random = false;
  for (const Node& node : graph.nodes)
    random = random || node.random;
  EXPECT_TRUE(random);
  const at::Tensor next = at::bernoulli(x.abs());
  const inspect::Validation validation = inspect::validate(graph);
  EXPECT_EQ(validation.different, 0);
  EXPECT_GE(validation.equal, 3);
  EXPECT_FALSE(same_bits(next, at::bernoulli(x.abs()))) << "the generator was set back";
}

TEST(Recorder_Validate, FindsAWrongEdgeAndAWrongResult) {
  const at::Tensor x = random_tensor({4}, 9);
  Graph graph = record({x}, [&] {
    const at::Tensor s = x.sin();
    const at::Tensor c = x.cos();
    return s + c;
  });
  ASSERT_EQ(inspect::validate(graph).different, 0);
  Graph wrong_edge = graph;
  wrong_edge.nodes[3].inputs[0].node = 2;  // cos in the place of sin
  EXPECT_EQ(inspect::validate(wrong_edge).different, 1);
  EXPECT_TRUE(inspect::validate(wrong_edge).differences.at(0).is_input);
  graph.nodes[3].outputs[0].value = graph.nodes[3].outputs[0].value + 1e-9;
  const inspect::Validation validation = inspect::validate(graph);
  ASSERT_EQ(validation.differences.size(), 1U);
  EXPECT_NEAR(validation.differences[0].max_abs_diff, 1e-9, 1e-12);
}

at::Tensor doubled_in_place(const at::Tensor& x, at::Tensor memory) {
  memory.add_(x);
  return x * 2.0;
}

TEST(Recorder_Functions, AreOneNodeAndMayChangeAnArgument) {
  const at::Tensor x = random_tensor({4}, 10);
  const at::Tensor memory = at::zeros({4}, x.options());
  const Graph graph = record({x, memory}, [&] {
    const auto step = [&] {
      return model::observed_change("step", "memory", doubled_in_place, model::arg("x", x),
                                    model::arg("memory", memory));
    };
    return step() + step() + memory;
  });
  EXPECT_EQ(labels_of(graph), (Names{"input_1_0:1", "input_2_0:1", "step_1_1:1", "step_2_2:1",
                                     "add_1_3:1", "add_2_4:1"}));
  EXPECT_EQ(node_of(graph, "step_1_1:1").calls, (Names{"aten::add_", "aten::mul"}));
  EXPECT_EQ(parents_of(graph, "step_2_2:1"), (Names{"input_1_0:1", "input_2_0:1", "step_1_1:1"}));
  EXPECT_EQ(parents_of(graph, "add_2_4:1"),
            (Names{"add_1_3:1", "input_2_0:1", "step_1_1:1", "step_2_2:1"}));
  EXPECT_TRUE(same_bits(node_of(graph, "step_2_2:1").inputs[1].value, x));
  EXPECT_EQ(inspect::validate(graph).different, 0);
  EXPECT_EQ(inspect::validate(graph).equal, 4);
}

TEST(Recorder_Off, LeavesNothingBehind) {
  const at::Tensor x = random_tensor({4}, 11);
  record({x}, [&] { return x.sin(); });
  EXPECT_EQ(model::call_recorder, nullptr);
  EXPECT_FALSE(at::hasThreadLocalCallbacks());
  EXPECT_FALSE(at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value());
  // Also when the pass is left by an exception.
  EXPECT_THROW(record({x}, [&]() -> at::Tensor { return x.mm(x); }), std::exception);
  EXPECT_EQ(model::call_recorder, nullptr);
  EXPECT_FALSE(at::hasThreadLocalCallbacks());
}

struct Counted {
  Counted() = default;
  Counted(const Counted&) { ++copies; }
  static inline int copies = 0;
};

TEST(Recorder_Off, CopiesNoArgumentAndBuildsNoName) {
  const at::Tensor x = random_tensor({4}, 14);
  const Counted counted;
  const auto call = [&] {
    return model::in_module("part", [&] {
      return model::observed(
          "f", [](const at::Tensor& t, const Counted&) { return t; }, model::arg("x", x),
          model::arg("counted", counted));
    });
  };
  Counted::copies = 0;
  const std::size_t holders = x.use_count();
  EXPECT_TRUE(call().is_same(x));
  EXPECT_EQ(Counted::copies, 0);
  EXPECT_EQ(x.use_count(), holders);
  record({x}, [&] { return call() + 1.0; });
  EXPECT_GT(Counted::copies, 0) << "a recorder keeps what it needs to run the call again";
}

TEST(Recorder_Off, OtherThreadsAreNotRecorded) {
  const at::Tensor x = random_tensor({4}, 12);
  const Graph graph = record({x}, [&] {
    std::thread([&] { x.cos(); }).join();
    return x.sin();
  });
  EXPECT_EQ(labels_of(graph), (Names{"input_1_0:1", "sin_1_1:1"}));
}

TEST(Recorder_Copies, KeepStridesAndAlignment) {
  const at::Tensor base = random_tensor({8, 10}, 13, at::kFloat);
  for (const at::Tensor& view :
       {base, base.t(), base.narrow(1, 3, 4), base.narrow(0, 2, 1).expand({5, 10})}) {
    const at::Tensor copy = inspect::faithful_copy(view);
    EXPECT_TRUE(same_bits(copy, view));
    EXPECT_EQ(copy.strides(), view.strides());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(copy.const_data_ptr()) % 64,
              reinterpret_cast<std::uintptr_t>(view.const_data_ptr()) % 64);
    EXPECT_NE(copy.const_data_ptr(), view.const_data_ptr());
  }
}

}  // namespace
}  // namespace kda::test
