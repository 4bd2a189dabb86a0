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

// Runs and compares one direction.
void expect_matches_oracle(const TestBackend& backend, const Case& c, bool backward) {
  const CaseData data = make_data(c, backend.io);
  // A backward that reads checkpoints needs the forward that writes them.
  const RunOptions options{.forward = !backward || c.h_kv, .backward = backward};
  const RunResult result = run_chunk(backend, c, data, options);
  KDA_SKIP_IF_REFUSED(backend, result.unsupported);
  expect_no_faults(result);
  const Outputs expected = oracle(c, data, {.forward = options.forward, .backward = backward});
  Outputs straightforward;
  if (compare_with_straightforward(backend)) {
    straightforward = straightforward_chunk(backend, c, data, options, expected);
  }
  expect_all_close(backend, c, data, expected, result.values,
                   straightforward.empty() ? nullptr : &straightforward);
}

TEST_P(ChunkConformance, Forward_MatchesOracle) {
  const auto& [backend, c] = GetParam();
  expect_matches_oracle(backend, c, /*backward=*/false);
}

TEST_P(ChunkConformance, Backward_MatchesOracle) {
  const auto& [backend, c] = GetParam();
  expect_matches_oracle(backend, c, /*backward=*/true);
}

INSTANTIATE_TEST_SUITE_P(All, ChunkConformance,
                         ::testing::Combine(::testing::ValuesIn(test_backends()),
                                            ::testing::ValuesIn(chunk_cases())),
                         BackendName());

}  // namespace
}  // namespace kda::test
