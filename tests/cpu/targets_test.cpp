// Every instruction set gives results within the project's tolerances, through the front door.
#include <gtest/gtest.h>

#include "../cpu/simd_targets.h"
#include "conformance/expect.h"
#include "support/oracle.h"
#include "support/run.h"
#include "support/tolerance.h"

namespace kda::test {
namespace {

std::vector<Case> target_cases() {
  return {
      {.name = "odd_heads", .T = 77, .H = 1, .HV = 2, .K = 60, .V = 100, .h_kv = true},
      {.name = "small", .T = 33, .K = 7, .V = 5, .decays = Decays::kMixed},
      {.name = "layer",
       .T = 70,
       .HV = 1,
       .K = 64,
       .V = 32,
       .gate = GateInput::kSafe,
       .betas = Betas::kLogitDoubled,
       .qk_l2norm = true},
      {.name = "resets", .T = 70, .K = 32, .V = 32, .decays = Decays::kResets},
  };
}

class SimdTargets : public ::testing::TestWithParam<DType> {};

TEST_P(SimdTargets, MatchTheOracle) {
  const TestBackend backend = {std::string("cpu_") + kda::name_of(GetParam()), Backend::kCpu,
                               GetParam(), Arithmetic::kF32, &host_memory()};
  for (const Case& c : target_cases()) {
    const CaseData data = make_data(c, backend.io);
    const Outputs expected = oracle(c, data);
    const Outputs straightforward = run_chunk(straightforward_of(backend), c, data).values;
    for_each_simd_target([&](const char*) {
      const RunResult result = run_chunk(backend, c, data);
      ASSERT_TRUE(result.unsupported.empty()) << result.unsupported;
      expect_no_faults(result);
      expect_all_close(backend, c, data, expected, result.values, &straightforward);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, SimdTargets, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& p) { return std::string(kda::name_of(p.param)); });

}  // namespace
}  // namespace kda::test
