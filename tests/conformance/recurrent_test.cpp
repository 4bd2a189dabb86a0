// recurrent_forward of every backend against the recurrence in double, on the same calls as the
// chunked form.
#include <gtest/gtest.h>

#include <tuple>

#include "conformance/chunk_cases.h"
#include "conformance/expect.h"
#include "support/oracle.h"
#include "support/run.h"
#include "support/tolerance.h"

namespace kda::test {
namespace {

class RecurrentConformance : public ::testing::TestWithParam<std::tuple<TestBackend, Case>> {};

TEST_P(RecurrentConformance, MatchesOracle) {
  const auto& [backend, c] = GetParam();
  const CaseData data = make_data(c, backend.io);
  const RunResult result = run_recurrent(backend, c, data);
  KDA_SKIP_IF_REFUSED(backend, result.unsupported);
  expect_no_faults(result);
  Outputs straightforward;
  if (compare_with_straightforward(backend)) {
    straightforward = run_recurrent(straightforward_of(backend), c, data).values;
  }
  const Outputs expected = oracle(c, data, {.forward = true, .backward = false});
  expect_all_close(backend, c, data, expected, result.values,
                   straightforward.empty() ? nullptr : &straightforward);
}

// The chunk length plays no part here: keep one of the cases that differ only in it.
std::vector<Case> recurrent_cases() {
  std::vector<Case> cases;
  for (const Case& c : chunk_cases()) {
    if (c.chunk == 64) cases.push_back(c);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, RecurrentConformance,
                         ::testing::Combine(::testing::ValuesIn(test_backends()),
                                            ::testing::ValuesIn(recurrent_cases())),
                         BackendName());

}  // namespace
}  // namespace kda::test
