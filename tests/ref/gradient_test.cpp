// Both hand-written backward passes against central differences of the token recurrence in double.
#include <gtest/gtest.h>

#include "core/problem.h"
#include "ref/chunk.h"
#include "ref/recurrent.h"
#include "support/gradcheck.h"
#include "support/host_view.h"
#include "support/oracle.h"
#include "support/record.h"

namespace kda::test {
namespace {

double inner(const HostTensor& a, const HostTensor& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.data.size(); ++i)
    sum += a.data[i] * b.data[i];
  return sum;
}

// <d_o, o> + <d_final_state, S_T> by the recurrence.
double loss(const Case& c, const CaseData& data) {
  HostTensor o({c.B, c.T, c.HV, c.V});
  HostTensor final_state({c.N(), c.HV, c.K, c.V});
  RecurrentForwardParams p;
  p.in = f64_inputs(c, data);
  p.o = f64_view(o);
  p.final_state_kv = f64_view(final_state);
  ref::recurrent_forward<double>(p, core::check_recurrent_forward(p));
  double sum = 0.0;
  if (data.d_o.defined()) sum += inner(data.d_o, o);
  if (data.d_final_state.defined()) sum += inner(data.d_final_state, final_state);
  return sum;
}

class Gradient : public ::testing::TestWithParam<Case> {};

TEST_P(Gradient, MatchesCentralDifferences) {
  const Case& c = GetParam();
  CaseData data = make_data(c, DType::kF64);

  Outputs recurrent;
  const ChunkBackwardParams p1 = f64_backward_params(c, data, &recurrent);
  ref::recurrent_backward<double>(p1, core::check_chunk_backward(p1));
  Outputs chunked;
  const ChunkBackwardParams p2 = f64_backward_params(c, data, &chunked);
  core::Problem problem = core::check_chunk_backward(p2);
  problem.chunk = 5;  // several chunks and a ragged one
  ref::chunk_backward<double>(p2, problem);

  // d_dt_bias exists without a bias too: differentiate around 0.
  Case with_bias = c;
  if (c.raw_gate() && !c.has_dt_bias()) {
    with_bias.gate = c.gate == GateInput::kSafeBare ? GateInput::kSafeNoALog : GateInput::kStandard;
    data.dt_bias = HostTensor({c.HV, c.K});
  }
  const std::pair<Quantity, HostTensor*> inputs[] = {{Quantity::kDq, &data.q},
                                                     {Quantity::kDk, &data.k},
                                                     {Quantity::kDv, &data.v},
                                                     {Quantity::kDg, &data.g},
                                                     {Quantity::kDbeta, &data.beta},
                                                     {Quantity::kDaLog, &data.a_log},
                                                     {Quantity::kDDtBias, &data.dt_bias},
                                                     {Quantity::kDState0, &data.state0}};
  std::size_t checked = 0;
  for (const auto& [quantity, input] : inputs) {
    if (!input->defined()) continue;
    const HostTensor numeric = central_differences(
        input, [&] { return loss(with_bias, data); }, 1e-6);
    const std::string name = name_of(quantity);
    record_difference(
        expect_gradient("recurrent " + name, recurrent.at(quantity), numeric, 1e-7, 1e-7));
    record_difference(expect_gradient("chunk " + name, chunked.at(quantity), numeric, 1e-7, 1e-7));
    ++checked;
  }
  EXPECT_EQ(checked, recurrent.size());
}

std::vector<Case> gradient_cases() {
  const Case seed{.name = "both", .B = 2, .T = 16, .H = 2, .HV = 4, .K = 8, .V = 8, .seed = 3};
  std::vector<Case> cases;
  const auto add = [&](const char* name, auto change) {
    Case c = seed;
    c.name = name;
    change(c);
    cases.push_back(c);
  };
  add("both", [](Case&) {});
  add("d_o_only", [](Case& c) { c.d_final_state = false; });
  add("d_final_only", [](Case& c) { c.d_o = false; });
  add("no_initial_state", [](Case& c) { c.initial_state = false; });
  add("standard_gate", [](Case& c) { c.gate = GateInput::kStandard; });
  add("standard_gate_no_bias", [](Case& c) { c.gate = GateInput::kStandardNoBias; });
  add("safe_gate", [](Case& c) {
    c.gate = GateInput::kSafe;
    c.betas = Betas::kLogit;
  });
  add("safe_gate_no_a_log", [](Case& c) {
    c.gate = GateInput::kSafeNoALog;
    c.betas = Betas::kLogitDoubled;
  });
  add("safe_gate_bare", [](Case& c) { c.gate = GateInput::kSafeBare; });
  add("l2norm", [](Case& c) {
    c.qk_l2norm = true;
    c.keys = Keys::kUnnormalised;
  });
  add("packed", [](Case& c) {
    c.B = 1;
    c.cu = {0, 0, 7, 8, 16};
    c.gate = GateInput::kSafe;
    c.betas = Betas::kLogit;
    c.qk_l2norm = true;
  });
  add("weak_gate_large_beta", [](Case& c) {
    c.decays = Decays::kSlow;
    c.keys = Keys::kIdentical;
    c.betas = Betas::kTwo;
  });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Ref, Gradient, ::testing::ValuesIn(gradient_cases()), CaseName());

}  // namespace
}  // namespace kda::test
