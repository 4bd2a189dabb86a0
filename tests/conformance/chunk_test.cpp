// chunk_forward and chunk_backward of every backend against the recurrence in double.
#include <gtest/gtest.h>

#include <tuple>

#include "conformance/chunk_cases.h"
#include "conformance/expect.h"
#include "support/oracle.h"
#include "support/run.h"
#include "support/tolerance.h"

namespace kda::test {
namespace {

class ChunkConformance : public ::testing::TestWithParam<std::tuple<TestBackend, Case>> {};

TEST_P(ChunkConformance, MatchesOracle) {
  const auto& [backend, c] = GetParam();
  const CaseData data = make_data(c, backend.io);
  const RunResult result = run_chunk(backend, c, data);
  KDA_SKIP_IF_REFUSED(backend, result.unsupported);
  expect_no_faults(result);
  const Outputs expected = oracle(c, data);
  Outputs straightforward;
  if (compare_with_straightforward(backend)) {
    straightforward = run_chunk(straightforward_of(backend), c, data).values;
  }
  expect_all_close(backend, c, data, expected, result.values,
                   straightforward.empty() ? nullptr : &straightforward);
}

INSTANTIATE_TEST_SUITE_P(All, ChunkConformance,
                         ::testing::Combine(::testing::ValuesIn(test_backends()),
                                            ::testing::ValuesIn(chunk_cases())),
                         BackendName());

}  // namespace
}  // namespace kda::test
