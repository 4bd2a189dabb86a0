// Quantities and stages against independent calculations.
#include "inspect/quantities.h"

#include <ATen/ops/exp.h>
#include <ATen/ops/linalg_svdvals.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <cmath>

#include "binding/functional.h"
#include "inspect/kda_stages.h"
#include "inspect/session.h"
#include "model/model_test_support.h"
#include "model/rms_norm.h"

namespace kda::test {
namespace {

using inspect::Graph;
using inspect::Node;
using inspect::Trace;
using model::AttnResMode;
using model::CausalLM;
using model::KDAConfig;

const Node& first_call(const Graph& graph, const std::string& function,
                       const std::string& module = "") {
  for (const Node& node : graph.nodes)
    if (node.function == function && node.module.starts_with(module)) return node;
  ADD_FAILURE() << "no call of " << function;
  return graph.nodes.front();
}

at::Tensor value(const Graph& graph, const std::string& name) {
  for (const inspect::Quantity& quantity : inspect::quantities_of(graph))
    if (quantity.name == name) return inspect::compute(graph, quantity);
  ADD_FAILURE() << "no quantity " << name;
  return {};
}

Trace trace_of(const KDAConfig& config, std::int64_t tokens, DType compute = DType::kF64) {
  const CausalLM lm = make_model(config, compute);
  spread_weights(lm, 41);
  return inspect::trace_model(lm, random_ids(tokens, config.vocab_size, 13));
}

at::Tensor parameter(const CausalLM& lm, const std::string& name) {
  for (const model::Parameter& p : lm.parameters())
    if (p.name == name) return p.tensor.detach();
  ADD_FAILURE() << name;
  return {};
}

const std::string kLayer = "model.layers.1.self_attn";

TEST(Quantities_Decay, IsTheGateFormulaOnTheProjection) {
  for (const bool safe : {false, true}) {
    KDAConfig config = small_config();
    config.gate_lower_bound.reset();
    if (safe) config.gate_lower_bound = -5.0;
    const CausalLM lm = make_model(config, DType::kF64);
    spread_weights(lm, 41);
    const Trace trace = inspect::trace_model(lm, random_ids(11, config.vocab_size, 13));
    const at::Tensor x = first_call(trace.graph, "linear", kLayer).argument("x");
    const auto weight = [&](const std::string& name) { return parameter(lm, kLayer + "." + name); };
    const at::Tensor z =
        at::matmul(at::matmul(x, weight("f_a_proj.weight").t()), weight("f_b_proj.weight").t());
    const at::Tensor decay = value(trace.graph, kLayer + ".decay");
    ASSERT_EQ(decay.sizes(), (std::vector<std::int64_t>{11, 4, 32}));
    for (std::int64_t t = 0; t < 11; ++t) {
      for (std::int64_t hv = 0; hv < 4; ++hv) {
        const double a = std::exp(weight("A_log")[hv].item<double>());
        for (std::int64_t k = 0; k < 32; k += 7) {
          const double u =
              z[t][hv * 32 + k].item<double>() + weight("dt_bias")[hv * 32 + k].item<double>();
          const double g = safe ? -5.0 / (1.0 + std::exp(-a * u)) : -a * std::log1p(std::exp(u));
          EXPECT_NEAR(decay[t][hv][k].item<double>(), std::exp(g), 1e-12);
        }
      }
    }
    const at::Tensor logit = at::matmul(x, weight("b_proj.weight").t());
    EXPECT_LT(max_difference(value(trace.graph, kLayer + ".beta"), at::sigmoid(logit)), 1e-12);
  }
}

// The operator itself, by the oracle backend, on the recorded arguments.
binding::KdaArguments arguments_of(const Node& node) {
  binding::KdaArguments args;
  args.q = node.argument("q");
  args.k = node.argument("k");
  args.v = node.argument("v");
  args.g = node.argument("g");
  args.beta = node.argument("beta");
  args.a_log = node.argument("a_log");
  args.dt_bias = node.argument("dt_bias");
  args.cu_seqlens = node.argument("cu_seqlens");
  if (node.number("lower_bound", 0.0) < 0) args.lower_bound = node.number("lower_bound", 0.0);
  args.raw_gate = true;
  args.beta_is_logit = true;
  args.qk_l2norm = true;
  args.output_final_state = true;
  args.chunk = node.whole("chunk", 0);
  args.backend = "ref";
  return args;
}

TEST(Quantities_AttentionMap, TimesTheValuesIsTheOutput) {
  const Trace trace = trace_of(small_config(), 75);
  const Node& node = first_call(trace.graph, "chunk_kda", kLayer);
  const at::Tensor map = value(trace.graph, kLayer + ".attention_map");
  ASSERT_EQ(map.sizes(), (std::vector<std::int64_t>{4, 75, 75}));
  const at::Tensor v = node.argument("v").squeeze(0).transpose(0, 1);  // [HV,T,V]
  const at::Tensor o = at::matmul(map, v).transpose(0, 1);
  const c10::NoGradGuard no_grad;
  const at::Tensor expected = std::get<0>(binding::recurrent_kda(arguments_of(node))).squeeze(0);
  EXPECT_LT(max_difference(o, expected), 1e-12);
  EXPECT_GT(expected.abs().max().item<double>(), 1e-3);
  EXPECT_EQ(map.triu(1).abs().max().item<double>(), 0.0);
}

TEST(Quantities_States, LastOneIsTheOperatorsAndNormsBelongToThem) {
  const Trace trace = trace_of(small_config(), 70);
  const Node& node = first_call(trace.graph, "chunk_kda", kLayer);
  const c10::NoGradGuard no_grad;
  const at::Tensor state = value(trace.graph, kLayer + ".state");
  const at::Tensor norms = value(trace.graph, kLayer + ".state_norm");
  const at::Tensor singular = value(trace.graph, kLayer + ".state_singular_values");
  ASSERT_EQ(norms.sizes(), (std::vector<std::int64_t>{70, 4}));
  ASSERT_EQ(singular.sizes(), (std::vector<std::int64_t>{70, 4, 16}));
  // Every prefix by the operator: the state after token t is the last of the first t + 1 tokens.
  for (const std::int64_t length : {1, 7, 64, 70}) {
    binding::KdaArguments args = arguments_of(node);
    for (at::Tensor* tensor : {&args.q, &args.k, &args.v, &args.g, &args.beta})
      *tensor = tensor->narrow(1, 0, length);
    args.cu_seqlens = index({0, length});
    const at::Tensor expected = *std::get<1>(binding::recurrent_kda(args));
    if (length == 70) {
      EXPECT_LT(max_difference(state, expected), 1e-12);
    }
    const at::Tensor last = expected.squeeze(0);
    EXPECT_LT(max_difference(norms[length - 1], last.pow(2).sum({1, 2}).sqrt()), 1e-12);
    // Squares of singular values are the eigenvalues of S^T S: compare their power sums.
    const at::Tensor gram = at::matmul(last.transpose(1, 2), last);
    const at::Tensor squares = singular[length - 1].pow(2);
    EXPECT_LT(max_difference(squares.sum(-1), gram.diagonal(0, 1, 2).sum(-1)), 1e-11);
    EXPECT_LT(max_difference(squares.pow(2).sum(-1), gram.pow(2).sum({1, 2})), 1e-11);
  }
  EXPECT_EQ(
      (singular.narrow(2, 1, 15) - singular.narrow(2, 0, 15)).clamp_min(0).sum().item<double>(),
      0.0);
}

TEST(Quantities_Attention, TimesTheValuesIsTheOutput) {
  const Trace trace = trace_of(small_k3_config(), 19);
  const std::string mla = "model.layers.3.self_attn";
  const Node& node = first_call(trace.graph, "packed_attention", mla);
  const at::Tensor p = value(trace.graph, mla + ".attention");
  ASSERT_EQ(p.sizes(), (std::vector<std::int64_t>{3, 19, 19}));
  EXPECT_LT(max_difference(p.sum(-1), p.new_ones({3, 19})), 1e-12);
  EXPECT_EQ(p.triu(1).abs().max().item<double>(), 0.0);
  const at::Tensor o = at::matmul(p, node.argument("v").transpose(0, 1)).transpose(0, 1);
  EXPECT_LT(max_difference(o, node.outputs.at(0).value), 1e-12);
}

TEST(Quantities_Experts, LoadAndWeightsFromScoresByHand) {
  const KDAConfig config = small_k3_config();
  const CausalLM lm = make_model(config, DType::kF64);
  spread_weights(lm, 41);
  const Trace trace = inspect::trace_model(lm, random_ids(40, config.vocab_size, 13));
  const std::string moe = "model.layers.1.block_sparse_moe";
  const at::Tensor x = first_call(trace.graph, "route", moe).argument("x");
  const at::Tensor scores = at::sigmoid(at::matmul(x, parameter(lm, moe + ".gate.weight").t()));
  std::vector<std::int64_t> load(6, 0);
  const at::Tensor weights = value(trace.graph, moe + ".router_weights");
  for (std::int64_t t = 0; t < 40; ++t) {
    std::vector<std::pair<double, std::int64_t>> ranked;
    for (std::int64_t e = 0; e < 6; ++e)
      ranked.emplace_back(-scores[t][e].item<double>(), e);
    std::sort(ranked.begin(), ranked.end());
    const double sum = -ranked[0].first - ranked[1].first;
    for (std::size_t rank = 0; rank < 6; ++rank) {
      const auto [score, expert] = ranked[rank];
      const double expected =
          rank < 2 ? config.moe.routed_scaling_factor * -score / (sum + 1e-20) : 0.0;
      EXPECT_NEAR(weights[t][expert].item<double>(), expected, 1e-12);
      if (rank < 2) ++load[static_cast<std::size_t>(expert)];
    }
  }
  EXPECT_TRUE(same_bits(value(trace.graph, moe + ".load"), index(load)));
}

TEST(Quantities_SourceWeights, MixTheSourcesToTheResult) {
  for (const AttnResMode mode : {AttnResMode::kBlock, AttnResMode::kFull}) {
    const Trace trace = trace_of(small_k3_config(mode), 13);
    int places = 0;
    for (const inspect::Quantity& quantity : inspect::quantities_of(trace.graph)) {
      if (quantity.kind != "source_weights") continue;
      ++places;
      const Node& node = trace.graph.nodes[static_cast<std::size_t>(quantity.node)];
      const at::Tensor p = inspect::compute(trace.graph, quantity);
      at::Tensor h;
      std::int64_t i = 0;
      for (const inspect::NodeInput& input : node.inputs) {
        if (!input.argument.starts_with("sources")) continue;
        const at::Tensor part = input.value.to(at::kDouble) * p.narrow(1, i++, 1);
        h = h.defined() ? h + part : part;
      }
      ASSERT_EQ(p.size(1), i);
      EXPECT_LT(max_difference(h, node.outputs.at(0).value), 1e-12) << quantity.name;
      EXPECT_LT(max_difference(p.sum(1), p.new_ones({13})), 1e-12);
    }
    EXPECT_EQ(places, 10) << "two a layer without the first, and the output";
  }
}

TEST(Stages_Operator, EndInItsOutputAndState) {
  for (const std::int64_t tokens : {1, 33, 64, 150}) {
    KDAConfig config = small_config();
    config.chunk = 32;
    const Trace trace = trace_of(config, tokens);
    const Node& node = first_call(trace.graph, "chunk_kda", kLayer);
    const c10::NoGradGuard no_grad;
    const auto [o, state] = binding::recurrent_kda(arguments_of(node));
    const inspect::KdaInputs in = inspect::kda_inputs(node);
    const inspect::KdaStages stages = inspect::kda_stages(in);
    EXPECT_LT(max_difference(stages.o, o.squeeze(0)), 1e-12);
    EXPECT_LT(max_difference(stages.final_state, *state), 1e-12);
    const std::int64_t chunks = (tokens + 31) / 32;
    ASSERT_EQ(stages.a_kk.sizes(), (std::vector<std::int64_t>{chunks, 4, 32, 32}));
    // t_inv undoes I + a_kk, inside the rows of the chunk.
    const std::int64_t rows = std::min<std::int64_t>(32, tokens);
    const at::Tensor a = stages.a_kk[0].narrow(1, 0, rows).narrow(2, 0, rows);
    const at::Tensor inverse = stages.t_inv[0].narrow(1, 0, rows).narrow(2, 0, rows);
    const at::Tensor unit = at::matmul(inverse, a) + inverse;
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < rows; ++j)
        EXPECT_NEAR(unit[0][i][j].item<double>(), i == j ? 1.0 : 0.0, 1e-12);
    }
    // a_qk and a_kk of a pair, by the sum of decays between them.
    if (tokens < 33) continue;
    const std::int64_t i = 20;
    const std::int64_t j = 17;
    at::Tensor between = in.g_ln.narrow(0, j + 1, i - j).sum(0);  // [HV,K]
    const at::Tensor pair = at::exp(between) * in.k[j];
    EXPECT_LT(max_difference(stages.a_qk.select(0, 0).select(1, i).select(1, j),
                             (in.q[i] * pair).sum(-1)),
              1e-13);
    EXPECT_LT(max_difference(stages.a_kk.select(0, 0).select(1, i).select(1, j),
                             (in.k[i] * pair).sum(-1) * in.beta[i]),
              1e-13);
  }
}

TEST(Stages_Open, AddsANodeForEachStageOnce) {
  Trace trace = trace_of(small_config(), 40, DType::kF32);
  Graph& graph = trace.graph;
  std::int64_t place = -1;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    if (graph.nodes[i].function == "chunk_kda") place = static_cast<std::int64_t>(i);
  const std::size_t before = graph.nodes.size();
  inspect::open_operator(graph, place);
  inspect::open_operator(graph, place);
  ASSERT_EQ(graph.nodes.size(), before + 7);
  const Node& whole = graph.nodes[static_cast<std::size_t>(place)];
  ASSERT_EQ(whole.stages.size(), 7U);
  std::vector<std::string> names;
  for (const std::int64_t stage : whole.stages) {
    const Node& node = graph.nodes[static_cast<std::size_t>(stage)];
    names.push_back(node.function);
    EXPECT_EQ(node.label, whole.label + "/" + node.function);
    EXPECT_EQ(node.stage_of, place);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"l2norm", "gate", "gate_cumsum", "intra", "wy",
                                             "state", "output"}));
  const Node& output = graph.nodes.back();
  EXPECT_LT(output.number("max_abs_diff_to_operator", 1.0), 1e-5);
  EXPECT_THROW(inspect::open_operator(graph, 0), Error);
}

}  // namespace
}  // namespace kda::test
