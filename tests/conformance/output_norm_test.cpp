// The gated RMS norm on the output of recurrent calls: every backend against the formula, in
// double, on the oracle's plain output.
#include <gtest/gtest.h>

#include <cmath>

#include "conformance/expect.h"
#include "kda/ops/recurrent.h"
#include "support/random.h"
#include "support/run.h"
#include "support/tolerance.h"

namespace kda::test {
namespace {

struct NormCase {
  std::string name;
  Case call;
  bool gated = true;
  bool gate_in_io = false;  // the gate's dtype: that of q, else f32 (f64)
  double eps = 1e-5;
  Layout gate_layout = Layout::kContiguous;
};
void PrintTo(const NormCase& c, std::ostream* os) { *os << c.name; }

struct NormRun {
  HostTensor o;
  std::vector<unsigned char> state_bits;
  std::vector<std::string> faults;
};

struct NormData {
  CaseData call;
  HostTensor weight, gate;
};

NormData make_norm_data(const NormCase& c, DType io) {
  NormData data{make_data(c.call, io), HostTensor({c.call.V}), {}};
  const CaseDTypes dtype = dtypes_of(c.call, io);
  Random random(91);
  for (double& x : data.weight.data)
    x = rounded(random.normal(), dtype.params);
  if (!c.gated) return data;
  data.gate = HostTensor({c.call.B, c.call.T, c.call.HV, c.call.V});
  for (double& x : data.gate.data)
    x = rounded(3.0 * random.normal(), c.gate_in_io ? io : dtype.params);
  return data;
}

NormRun run(const TestBackend& backend, const NormCase& c, const NormData& data, bool with_norm) {
  const Case& call = c.call;
  const DType params_dtype = dtypes_of(call, backend.io).params;
  DeviceMemory& memory = *backend.memory;
  const DeviceInputs inputs(backend, call, data.call);
  DeviceTensor o(memory, backend.io, {call.B, call.T, call.HV, call.V}, call.out_layout);
  DeviceTensor state(memory, params_dtype, {call.N(), call.HV, call.K, call.V},
                     Layout::kContiguous);
  DeviceTensor weight(memory, params_dtype, {call.V}, Layout::kContiguous);
  weight.upload(data.weight);
  RecurrentForwardParams p;
  p.in = inputs.operator_inputs(call);
  p.o = o.view();
  p.final_state_kv = state.view();
  DeviceTensor gate;
  if (with_norm) {
    p.out_norm.weight = weight.view();
    p.out_norm.eps = c.eps;
    if (data.gate.defined()) {
      gate = DeviceTensor(memory, c.gate_in_io ? backend.io : params_dtype, data.gate.shape,
                          c.gate_layout);
      gate.upload(data.gate);
      p.out_norm.gate = gate.view();
    }
  }
  Context context{.backend = backend.backend, .stream = memory.stream()};
  const GuardedWorkspace workspace(memory, recurrent_forward_workspace_bytes(p, context));
  context.workspace = workspace.get();
  recurrent_forward(p, context);
  NormRun result{o.download(), state.bits(), {}};
  result.faults = {o.damage(), state.damage(), workspace.damage(), inputs.changed(),
                   weight.changed() || gate.changed() ? "the norm's tensors were written" : ""};
  return result;
}

// weight o / sqrt(mean o^2 + eps) sigmoid(gate)
HostTensor normalised(HostTensor o, const NormData& data, double eps) {
  const std::size_t V = data.weight.data.size();
  for (std::size_t row = 0; row < o.data.size(); row += V) {
    double squares = 0.0;
    for (std::size_t j = 0; j < V; ++j)
      squares += o.data[row + j] * o.data[row + j];
    const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(V) + eps);
    for (std::size_t j = 0; j < V; ++j) {
      o.data[row + j] *= rstd * data.weight.data[j];
      if (data.gate.defined()) o.data[row + j] /= 1.0 + std::exp(-data.gate.data[row + j]);
    }
  }
  return o;
}

class OutputNormConformance : public ::testing::TestWithParam<std::tuple<TestBackend, NormCase>> {};

TEST_P(OutputNormConformance, MatchesTheFormula) {
  const auto& [backend, c] = GetParam();
  const NormData data = make_norm_data(c, backend.io);
  NormRun given;
  NormRun plain;
  const std::string refusal = refusal_of([&] {
    given = run(backend, c, data, true);
    plain = run(backend, c, data, false);
  });
  KDA_SKIP_IF_REFUSED(backend, refusal);
  for (const std::string& fault : given.faults)
    EXPECT_EQ(fault, "");
  EXPECT_EQ(given.state_bits, plain.state_bits) << "the norm changed the states";

  const TestBackend oracle{"oracle", Backend::kRef, DType::kF64, Arithmetic::kF64, &host_memory()};
  NormCase dense = c;
  dense.call.in_layout = dense.call.out_layout = Layout::kContiguous;
  const HostTensor expected = normalised(run(oracle, dense, data, false).o, data, c.eps);
  expect_close({&backend, c.name, Quantity::kO, 0.0, nullptr}, expected, given.o);
}

std::vector<NormCase> norm_cases() {
  const Case small{.name = "small", .B = 3, .T = 5, .H = 1, .HV = 2, .K = 24, .V = 20, .seed = 92};
  Case step = small;
  step.T = 1;
  step.H = 2;
  step.HV = 4;
  step.K = step.V = 128;
  step.gate = GateInput::kSafe;
  step.betas = Betas::kLogit;
  step.qk_l2norm = true;
  Case verify = step;
  verify.T = 6;
  Case packed = step;
  packed.B = 1;
  packed.T = 7;
  packed.cu = {0, 3, 3, 4, 7};
  Case wide = small;
  wide.K = 40;
  wide.V = 200;
  Case strided = step;
  strided.in_layout = strided.out_layout = Layout::kFusedSlice;
  Case many = step;  // more states than a GPU works on at once
  many.B = 150;
  Case misaligned = step;
  misaligned.in_layout = misaligned.out_layout = Layout::kMisaligned;
  Case no_tokens = packed;
  no_tokens.T = 0;
  no_tokens.cu = {0, 0, 0};
  return {
      {.name = "small", .call = small},
      {.name = "small_ungated", .call = small, .gated = false},
      {.name = "small_io_gate", .call = small, .gate_in_io = true},
      {.name = "small_large_eps", .call = small, .eps = 0.5},
      {.name = "small_strided_gate", .call = small, .gate_layout = Layout::kFusedSlice},
      {.name = "v200", .call = wide, .gate_in_io = true},
      {.name = "step_k128", .call = step},
      {.name = "step_k128_io_gate", .call = step, .gate_in_io = true},
      {.name = "step_k128_ungated", .call = step, .gated = false},
      {.name = "step_k128_misaligned_gate",
       .call = step,
       .gate_in_io = true,
       .gate_layout = Layout::kMisaligned},
      {.name = "step_k128_misaligned", .call = misaligned},
      {.name = "step_k128_strided",
       .call = strided,
       .gate_in_io = true,
       .gate_layout = Layout::kFusedSlice},
      {.name = "tokens_k128", .call = verify, .gate_in_io = true},
      {.name = "packed_k128", .call = packed, .gate_in_io = true},
      {.name = "many_k128", .call = many, .gate_in_io = true},
      {.name = "no_tokens", .call = no_tokens},
  };
}

INSTANTIATE_TEST_SUITE_P(All, OutputNormConformance,
                         ::testing::Combine(::testing::ValuesIn(test_backends()),
                                            ::testing::ValuesIn(norm_cases())),
                         BackendName());

}  // namespace
}  // namespace kda::test
