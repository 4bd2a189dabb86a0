// gate_forward, gate_backward and gate_cumsum_forward of every backend against the oracle in
// double.
#include "kda/ops/gate.h"

#include <gtest/gtest.h>

#include <array>

#include "conformance/expect.h"
#include "support/host_view.h"
#include "support/random.h"
#include "support/tolerance.h"

namespace kda::test {
namespace {

struct GateCase {
  std::string name;
  GateInput gate = GateInput::kStandard;
  double amplitude = 1.0;  // of the pre-activations
  std::int64_t B = 2, T = 37, HV = 3, K = 24;
  Layout layout = Layout::kContiguous;
  bool wide = false;  // dg_raw in f32 whatever g_raw is
  std::vector<std::int64_t> cu{};
  int chunk = 16;
};
void PrintTo(const GateCase& c, std::ostream* os) { *os << c.name; }

class GateConformance : public ::testing::TestWithParam<std::tuple<TestBackend, GateCase>> {};

TEST_P(GateConformance, MatchesOracle) {
  const auto& [backend, c] = GetParam();
  const DType accum = backend.io == DType::kF64 ? DType::kF64 : DType::kF32;
  Case as_case;  // the flags of the gate
  as_case.gate = c.gate;
  const bool has_a_log = as_case.has_a_log();
  Random random(71);
  HostTensor x({c.B, c.T, c.HV, c.K});
  HostTensor dg(x.shape), a_log({c.HV}), dt_bias({c.HV, c.K});
  for (double& value : x.data)
    value = rounded(c.amplitude * random.normal(), backend.io);
  for (double& value : dg.data)
    value = rounded(random.normal(), accum);
  for (double& value : a_log.data)
    value = rounded(random.uniform(-1.0, 2.5), accum);
  for (double& value : dt_bias.data)
    value = rounded(random.normal() - 2.0, accum);

  const auto run = [&](DeviceMemory& memory, Backend which, DType io, DType wide, Layout layout,
                       Outputs* out, std::vector<std::string>* faults) {
    const auto upload = [&](const HostTensor& values, DType dtype, Layout where) {
      DeviceTensor tensor(memory, dtype, values.shape, where);
      tensor.upload(values);
      return tensor;
    };
    const DeviceTensor in = upload(x, io, layout);
    const DeviceTensor grad = upload(dg, wide, layout);
    const DeviceTensor a = upload(a_log, wide, Layout::kContiguous);
    const DeviceTensor b = upload(dt_bias, wide, Layout::kContiguous);
    DeviceTensor g_ln(memory, wide, x.shape, layout);
    DeviceTensor gcum(memory, wide, x.shape, layout);
    DeviceTensor dg_raw(memory, c.wide ? wide : io, x.shape, layout);
    DeviceTensor da_log(memory, wide, {c.HV}, Layout::kContiguous);
    DeviceTensor d_dt_bias(memory, wide, {c.HV, c.K}, Layout::kContiguous);

    GateParams gate;
    if (has_a_log) gate.a_log = a.view();
    if (as_case.has_dt_bias()) gate.dt_bias = b.view();
    if (as_case.safe_gate()) gate.lower_bound_ln = -5.0;
    Context context{.backend = which, .stream = memory.stream()};
    if (c.cu.empty()) {
      gate_forward({in.view(), gate, g_ln.view()}, context);
      (*out)[Quantity::kGLn] = g_ln.download();
      GateBackwardParams backward{in.view(),
                                  gate,
                                  grad.view(),
                                  dg_raw.view(),
                                  has_a_log ? da_log.view() : TensorView{},
                                  d_dt_bias.view()};
      const GuardedWorkspace workspace(memory, gate_backward_workspace_bytes(backward, context));
      context.workspace = workspace.get();
      gate_backward(backward, context);
      faults->push_back(workspace.damage());
      (*out)[Quantity::kDg] = dg_raw.download();
      if (has_a_log) (*out)[Quantity::kDaLog] = da_log.download();
      (*out)[Quantity::kDDtBias] = d_dt_bias.download();
    }
    GateCumsumForwardParams cumsum;
    cumsum.g_raw = in.view();
    cumsum.gate = gate;
    cumsum.chunk = c.chunk;
    cumsum.gcum_log2 = gcum.view();
    if (!c.cu.empty()) {
      cumsum.cu_seqlens = view_of(c.cu.data(), {static_cast<std::int64_t>(c.cu.size())});
    }
    gate_cumsum_forward(cumsum, context);
    (*out)[Quantity::kGcum] = gcum.download();
    for (const DeviceTensor* tensor : {&g_ln, &gcum, &dg_raw, &da_log, &d_dt_bias}) {
      faults->push_back(tensor->damage());
    }
    if (in.changed() || grad.changed() || a.changed() || b.changed()) {
      faults->push_back("an input was written");
    }
  };

  Outputs expected;
  Outputs given;
  std::vector<std::string> faults;
  run(host_memory(), Backend::kRef, DType::kF64, DType::kF64, Layout::kContiguous, &expected,
      &faults);
  const std::string refusal = refusal_of(
      [&] { run(*backend.memory, backend.backend, backend.io, accum, c.layout, &given, &faults); });
  KDA_SKIP_IF_REFUSED(backend, refusal);
  for (const std::string& fault : faults)
    EXPECT_EQ(fault, "");
  for (const auto& [quantity, value] : given) {
    // Parameter gradients are sums with cancellation: judged on the scale of their terms.
    const double terms = quantity == Quantity::kDDtBias ? std::sqrt(static_cast<double>(c.B * c.T))
                         : quantity == Quantity::kDaLog
                             ? std::sqrt(static_cast<double>(c.B * c.T * c.K)) * c.amplitude * 4
                             : 0.0;
    expect_close({&backend, c.name, quantity, terms, nullptr}, expected.at(quantity), value);
  }
}

class GateOutputs : public ::testing::TestWithParam<TestBackend> {};

// Absent outputs change nothing about the others.
TEST_P(GateOutputs, EachAlone) {
  const TestBackend& backend = GetParam();
  const DType accum = backend.io == DType::kF64 ? DType::kF64 : DType::kF32;
  Random random(72);
  const auto random_tensor = [&](DType dtype, std::vector<std::int64_t> shape) {
    HostTensor values(shape);
    for (double& value : values.data)
      value = random.normal();
    DeviceTensor tensor(*backend.memory, dtype, shape, Layout::kContiguous);
    tensor.upload(values);
    return tensor;
  };
  const DeviceTensor x = random_tensor(backend.io, {2, 37, 3, 24});
  const DeviceTensor dg = random_tensor(accum, {2, 37, 3, 24});
  const DeviceTensor a_log = random_tensor(accum, {3});
  GateBackwardParams inputs;
  inputs.g_raw = x.view();
  inputs.gate.a_log = a_log.view();
  inputs.dg_ln = dg.view();

  // Runs with the outputs whose bit is set; returns their bytes, one after another.
  const auto run = [&](int which) {
    DeviceTensor dg_raw(*backend.memory, backend.io, {2, 37, 3, 24}, Layout::kContiguous);
    DeviceTensor da_log(*backend.memory, accum, {3}, Layout::kContiguous);
    DeviceTensor d_dt_bias(*backend.memory, accum, {3, 24}, Layout::kContiguous);
    GateBackwardParams p = inputs;
    if ((which & 1) != 0) p.dg_raw = dg_raw.view();
    if ((which & 2) != 0) p.da_log = da_log.view();
    if ((which & 4) != 0) p.d_dt_bias = d_dt_bias.view();
    Context context{.backend = backend.backend, .stream = backend.memory->stream()};
    const GuardedWorkspace workspace(*backend.memory, gate_backward_workspace_bytes(p, context));
    context.workspace = workspace.get();
    gate_backward(p, context);
    return std::array{dg_raw.bits(), da_log.bits(), d_dt_bias.bits()};
  };
  const std::string refusal = refusal_of([&] { run(7); });
  KDA_SKIP_IF_REFUSED(backend, refusal);
  const auto all = run(7);
  const auto untouched = run(0);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto alone = run(1 << i);
    EXPECT_TRUE(alone[i] == all[i]) << "output " << i;
    EXPECT_FALSE(alone[i] == untouched[i]) << "output " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GateOutputs, ::testing::ValuesIn(test_backends()), BackendName());

// A ready-made decay through the prefix sum, which restarts at every chunk and sequence: [0,40,104]
// has two sequences in one tile.
TEST_P(GateConformance, ReadyDecay_CumsumRestarts) {
  const auto& [backend, c] = GetParam();
  const DType accum = backend.io == DType::kF64 ? DType::kF64 : DType::kF32;
  HostTensor g({1, c.T, c.HV, c.K}, -1.0);
  const std::vector<std::int64_t> cu = c.cu.empty() ? std::vector<std::int64_t>{0, c.T} : c.cu;
  DeviceTensor in(*backend.memory, backend.io, g.shape, c.layout);
  in.upload(g);
  DeviceTensor out(*backend.memory, accum, g.shape, c.layout);
  GateCumsumForwardParams p;
  p.g_ln = in.view();
  if (!c.cu.empty()) p.cu_seqlens = view_of(cu.data(), {static_cast<std::int64_t>(cu.size())});
  p.chunk = c.chunk;
  p.gcum_log2 = out.view();
  const std::string refusal = refusal_of([&] {
    gate_cumsum_forward(p, {.backend = backend.backend, .stream = backend.memory->stream()});
  });
  KDA_SKIP_IF_REFUSED(backend, refusal);
  const HostTensor sums = out.download();
  for (std::size_t n = 0; n + 1 < cu.size(); ++n) {
    for (std::int64_t t = cu[n]; t < cu[n + 1]; ++t) {
      const auto rows = static_cast<double>((t - cu[n]) % c.chunk + 1);
      EXPECT_NEAR(sums.at(0, t, 0, 0), -rows * 1.4426950408889634, 1e-5 * rows) << "t " << t;
    }
  }
}

std::vector<GateCase> gate_cases() {
  return {
      {.name = "standard"},
      {.name = "standard_no_bias", .gate = GateInput::kStandardNoBias},
      {.name = "safe", .gate = GateInput::kSafe},
      {.name = "safe_no_a_log", .gate = GateInput::kSafeNoALog},
      {.name = "safe_bare", .gate = GateInput::kSafeBare},
      {.name = "standard_wide_range", .amplitude = 20.0},
      {.name = "safe_wide_range", .gate = GateInput::kSafe, .amplitude = 20.0},
      {.name = "k128", .gate = GateInput::kSafe, .T = 70, .HV = 2, .K = 128, .chunk = 64},
      {.name = "k60", .T = 70, .HV = 2, .K = 60, .wide = true, .chunk = 128},
      {.name = "k1", .T = 3, .HV = 1, .K = 1, .chunk = 1},
      {.name = "fused_slice", .gate = GateInput::kSafe, .layout = Layout::kFusedSlice},
      {.name = "misaligned", .layout = Layout::kMisaligned},
      {.name = "head_major", .layout = Layout::kHeadMajor},
      {.name = "no_tokens", .T = 0},
      {.name = "packed",
       .gate = GateInput::kSafe,
       .B = 1,
       .T = 104,
       .cu = {0, 40, 104},
       .chunk = 64},
      {.name = "packed_empty", .B = 1, .T = 37, .cu = {0, 0, 17, 18, 18, 37}, .chunk = 16},
  };
}

INSTANTIATE_TEST_SUITE_P(All, GateConformance,
                         ::testing::Combine(::testing::ValuesIn(test_backends()),
                                            ::testing::ValuesIn(gate_cases())),
                         BackendName());

}  // namespace
}  // namespace kda::test
