// A slow decay must not be lost to rounding: exp(-8e-5) narrowed to bf16 is exactly 1, and rounded
// to f32 it is off by the same 8e-9 at every one of 4,096 steps.
#include <gtest/gtest.h>

#include "conformance/expect.h"
#include "kda/ops/recurrent.h"
#include "support/oracle.h"
#include "support/run.h"

namespace kda::test {
namespace {

class LongMemory : public ::testing::TestWithParam<TestBackend> {};

// Keys live in the first half of the channels; the second half of the initial state only decays.
Case memory_case() {
  return {.name = "memory", .T = 4096, .K = 16, .V = 16, .decays = Decays::kMemory, .seed = 51};
}
CaseData memory_data(const Case& c, DType io) {
  CaseData data = make_data(c, io);
  for (std::int64_t t = 0; t < c.T; ++t) {
    for (std::int64_t k = c.K / 2; k < c.K; ++k)
      data.k.at(0, t, 0, k) = 0.0;
  }
  return data;
}

// rms(error) / rms over the half that only decays, and over the whole state.
void expect_state(const HostTensor& expected, const HostTensor& given, double limit,
                  const std::string& what) {
  const std::size_t n = expected.data.size();
  for (std::size_t first : {std::size_t{0}, n / 2}) {
    double error = 0.0;
    double size = 0.0;
    for (std::size_t i = first; i < n; ++i) {
      const double difference = given.data[i] - expected.data[i];
      error += difference * difference;
      size += expected.data[i] * expected.data[i];
    }
    EXPECT_LT(std::sqrt(error / size), limit) << what << " from element " << first;
  }
}

TEST_P(LongMemory, FinalState_KeepsItsDigits) {
  TestBackend backend = GetParam();
  const Case c = memory_case();
  const CaseData data = memory_data(c, backend.io);
  const RunOptions forward_only{.backward = false};
  const RunResult chunk = run_chunk(backend, c, data, forward_only);
  KDA_SKIP_IF_REFUSED(backend, chunk.unsupported);
  const RunResult recurrent = run_recurrent(backend, c, data, forward_only);
  const HostTensor expected =
      oracle(c, data, {.forward = true, .backward = false}).at(Quantity::kFinalState);
  // Matrix units read the state in 16 bits; the part that only decays never passes through them.
  const double limit = backend.arithmetic == Arithmetic::kHalfOperands ? 5e-3 : 1e-5;
  expect_state(expected, chunk.values.at(Quantity::kFinalState), limit, "chunk");
  expect_state(expected, recurrent.values.at(Quantity::kFinalState), 1e-5, "recurrent");
}

// The decode path: one call per token, the state in a pool.
TEST_P(LongMemory, Decode_KeepsItsDigits) {
  const TestBackend& backend = GetParam();
  const Case c = memory_case();
  const CaseData data = memory_data(c, backend.io);
  const DeviceInputs inputs(backend, c, data);
  const CaseDTypes dtype = dtypes_of(c, backend.io);
  DeviceTensor pool(*backend.memory, dtype.params, {2, 1, c.K, c.V}, Layout::kContiguous);
  HostTensor initial({2, 1, c.K, c.V});
  std::copy(data.state0.data.begin(), data.state0.data.end(),
            initial.data.begin() + static_cast<std::ptrdiff_t>(data.state0.data.size()));
  pool.upload(initial);
  DeviceTensor slots(*backend.memory, DType::kI32, {1}, Layout::kContiguous);
  slots.upload(std::vector<std::int64_t>{1});
  DeviceTensor o(*backend.memory, dtype.io, {1, 1, 1, c.V}, Layout::kContiguous);

  const OperatorInputs all = inputs.operator_inputs(c);
  const auto token = [](ConstTensorView view, std::int64_t t) {
    view.data = static_cast<const unsigned char*>(view.data) +
                static_cast<std::size_t>(t * view.stride[1]) * size_of(view.dtype);
    view.shape[1] = 1;
    return view;
  };
  RecurrentForwardParams p;
  p.in = all;
  p.in.initial_state_kv = {};
  p.o = o.view();
  p.pool.pool_kv = pool.view();
  p.pool.slots = slots.view();
  Context context{.backend = backend.backend, .stream = backend.memory->stream()};
  const std::string refusal = refusal_of([&] {
    for (std::int64_t t = 0; t < c.T; ++t) {
      p.in.q = token(all.q, t);
      p.in.k = token(all.k, t);
      p.in.v = token(all.v, t);
      p.in.g_ln = token(all.g_ln, t);
      p.in.beta = token(all.beta, t);
      recurrent_forward(p, context);
    }
  });
  KDA_SKIP_IF_REFUSED(backend, refusal);
  const HostTensor after = pool.download();
  HostTensor state({1, 1, c.K, c.V});
  std::copy(after.data.end() - static_cast<std::ptrdiff_t>(state.data.size()), after.data.end(),
            state.data.begin());
  const HostTensor expected =
      oracle(c, data, {.forward = true, .backward = false}).at(Quantity::kFinalState);
  expect_state(expected, state, 1e-5, "decode");
}

INSTANTIATE_TEST_SUITE_P(All, LongMemory, ::testing::ValuesIn(test_backends()), BackendName());

}  // namespace
}  // namespace kda::test
