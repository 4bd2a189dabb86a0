// The C++ entry against the definition, evaluated token by token with at::Tensor operations.
#include "binding/functional.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <vector>

#include "kda/error.h"

namespace kda::binding {
namespace {

struct Reference {
  at::Tensor o;
  at::Tensor state;
};

// Dense, one query head per value head, ready-made gate and step size.
Reference definition(const KdaArguments& a) {
  const double scale = a.scale.value_or(1.0 / std::sqrt(static_cast<double>(a.q.size(3))));
  at::Tensor state = *a.initial_state;
  std::vector<at::Tensor> outputs;
  for (std::int64_t t = 0; t < a.q.size(1); ++t) {
    const auto at_token = [t](const at::Tensor& x) { return x.select(1, t); };
    const at::Tensor key = at_token(a.k).unsqueeze(-1);
    state = state * at_token(a.g).exp().unsqueeze(-1);
    const at::Tensor error = at_token(a.v) - (state * key).sum(2);
    state = state + key * (at_token(a.beta).unsqueeze(-1) * error).unsqueeze(2);
    outputs.push_back((state * at_token(a.q).unsqueeze(-1)).sum(2) * scale);
  }
  return {at::stack(outputs, 1), state};
}

KdaArguments make_arguments(at::ScalarType dtype = at::kDouble) {
  at::manual_seed(11);
  const auto options = at::TensorOptions().dtype(at::kDouble);
  KdaArguments a;
  a.q = at::randn({2, 70, 3, 5}, options).to(dtype);
  a.k = at::randn({2, 70, 3, 5}, options);
  a.k = (a.k / a.k.norm(2, {-1}, true)).to(dtype);
  a.v = at::randn({2, 70, 3, 7}, options).to(dtype);
  a.g = (-at::rand({2, 70, 3, 5}, options)).to(dtype);
  a.beta = at::rand({2, 70, 3}, options).to(dtype);
  a.initial_state =
      at::randn({2, 3, 5, 7}, options).to(dtype == at::kDouble ? at::kDouble : at::kFloat);
  a.output_final_state = true;
  return a;
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  return (a - b).abs().max().item<double>();
}

// The error a call throws, as code and text.
template <typename Function>
std::pair<ErrorCode, std::string> error_of(Function&& function) {
  try {
    function();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  ADD_FAILURE() << "no kda::Error was thrown";
  return {ErrorCode::kInternal, ""};
}

TEST(ChunkKda, EqualsDefinition) {
  const KdaArguments a = make_arguments();
  const auto [o, state] = chunk_kda(a);
  const Reference expected = definition(a);
  EXPECT_LT(largest_difference(o, expected.o), 1e-12);
  ASSERT_TRUE(state.has_value());
  EXPECT_LT(largest_difference(*state, expected.state), 1e-12);
}

TEST(ChunkKda, FinalState_AbsentUnlessAskedFor) {
  KdaArguments a = make_arguments();
  a.output_final_state = false;
  EXPECT_FALSE(std::get<1>(chunk_kda(a)).has_value());
  EXPECT_FALSE(std::get<1>(recurrent_kda(a)).has_value());
}

TEST(ChunkKda, Gradients_EqualAutogradOfDefinition) {
  for (const bool keep_states : {true, false}) {
    KdaArguments a = make_arguments();
    a.keep_states = keep_states;
    const std::vector<at::Tensor> leaves = {a.q, a.k, a.v, a.g, a.beta, *a.initial_state};
    for (const at::Tensor& leaf : leaves)
      leaf.requires_grad_();
    const auto [o, state] = chunk_kda(a);
    const Reference expected = definition(a);
    const auto gradients = [&](const at::Tensor& loss) {
      return torch::autograd::grad({loss}, leaves, {}, /*retain_graph=*/true);
    };
    const auto actual = gradients(o.square().sum() + state->sin().sum());
    const auto wanted = gradients(expected.o.square().sum() + expected.state.sin().sum());
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      EXPECT_LT(largest_difference(actual[i], wanted[i]), 1e-10) << "leaf " << i;
    }
  }
}

TEST(ChunkKda, NarrowOperands_AreWidenedAndGetNarrowGradients) {
  KdaArguments a = make_arguments(at::kBFloat16);
  a.raw_gate = true;
  a.a_log = at::zeros({1, 1, 3, 1}, at::kBFloat16).requires_grad_();
  a.dt_bias = at::zeros({15}, at::kHalf).requires_grad_();
  a.initial_state = a.initial_state->to(at::kBFloat16).requires_grad_();
  const auto [o, state] = chunk_kda(a);
  EXPECT_EQ(o.scalar_type(), at::kBFloat16);
  EXPECT_EQ(state->scalar_type(), at::kFloat);
  torch::autograd::backward({o.sum()}, {});
  EXPECT_EQ(a.a_log->grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(a.a_log->grad().sizes(), a.a_log->sizes());
  EXPECT_EQ(a.dt_bias->grad().scalar_type(), at::kHalf);
  EXPECT_EQ(a.dt_bias->grad().sizes(), a.dt_bias->sizes());
  EXPECT_EQ(a.initial_state->grad().scalar_type(), at::kBFloat16);
}

TEST(RecurrentKda, EqualsDefinition) {
  const KdaArguments a = make_arguments();
  const auto [o, state] = recurrent_kda(a);
  const Reference expected = definition(a);
  EXPECT_LT(largest_difference(o, expected.o), 1e-12);
  EXPECT_LT(largest_difference(*state, expected.state), 1e-12);
}

TEST(RecurrentKda, Backward_IsAnError) {
  KdaArguments a = make_arguments();
  a.q.requires_grad_();
  const at::Tensor o = std::get<0>(recurrent_kda(a));
  EXPECT_THROW(torch::autograd::backward({o.sum()}, {}), c10::Error);
}

TEST(RecurrentKdaPool, UpdatesItsSlotsOnly) {
  KdaArguments a = make_arguments();
  const Reference expected = definition(a);
  const at::Tensor start = *a.initial_state;
  a.initial_state.reset();
  a.output_final_state = false;
  PoolArguments pool;
  pool.pool = at::randn({5, 3, 5, 7}, at::kDouble);
  pool.slots = at::tensor({4, 1}, at::kInt);
  pool.pool.index_copy_(0, pool.slots.to(at::kLong), start);
  const at::Tensor before = pool.pool.clone();
  const at::Tensor o = recurrent_kda_pool(a, pool);
  EXPECT_LT(largest_difference(o, expected.o), 1e-12);
  EXPECT_LT(largest_difference(pool.pool.index_select(0, pool.slots), expected.state), 1e-12);
  const at::Tensor others = at::tensor({0, 2, 3}, at::kLong);
  EXPECT_TRUE(at::equal(pool.pool.index_select(0, others), before.index_select(0, others)));
}

TEST(Gate, StandardAndSafe_EqualTheirFormulas) {
  const at::Tensor x = at::randn({4, 3, 5}, at::kDouble);
  const at::Tensor a_log = at::randn({3}, at::kDouble);
  const at::Tensor bias = at::randn({3, 5}, at::kDouble);
  const at::Tensor rate = a_log.exp().unsqueeze(-1);
  const at::Tensor standard = -rate * at::softplus(x + bias);
  EXPECT_LT(largest_difference(gate(x, a_log, bias, std::nullopt), standard), 1e-12);
  const at::Tensor safe = -5.0 * at::sigmoid(rate * (x + bias));
  EXPECT_LT(largest_difference(gate(x, a_log, bias, -5.0), safe), 1e-12);
}

TEST(L2Norm, EqualsItsFormula) {
  const at::Tensor x = at::randn({2, 3, 4, 5}, at::kDouble);
  const at::Tensor expected = x / (x.square().sum({-1}, true) + 1e-6).sqrt();
  EXPECT_LT(largest_difference(l2norm(x), expected), 1e-13);
}

TEST(Errors, AreThoseOfTheLibrary) {
  KdaArguments a = make_arguments();
  a.k = a.k.narrow(3, 0, 4);
  auto [code, text] = error_of([&] { chunk_kda(a); });
  EXPECT_EQ(code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(text, "k: expected [B=2,T=70,H=3,K=5], given [2,70,3,4]");

  a = make_arguments();
  a.backend = "cuda";
  std::tie(code, text) = error_of([&] { recurrent_kda(a); });
  EXPECT_EQ(code, ErrorCode::kUnsupported);
  EXPECT_NE(text.find("backend cuda cannot serve this call"), std::string::npos) << text;

  a = make_arguments();
  a.backend = "fast";
  std::tie(code, text) = error_of([&] { chunk_kda(a); });
  EXPECT_EQ(text, "backend: expected auto, ref, cpu or cuda, given 'fast'");
}

TEST(Errors, MissingCudaLibrary_SaysHowToBuildIt) {
  const auto [code, text] = error_of([] { load_cuda_library(); });
  EXPECT_EQ(code, ErrorCode::kUnsupported);
  EXPECT_NE(text.find("-DKDA_CUDA=ON"), std::string::npos) << text;
}

}  // namespace
}  // namespace kda::binding
