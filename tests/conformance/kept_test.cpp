// What a forward keeps for its backward changes no result, to the bit.
#include <gtest/gtest.h>

#include "conformance/expect.h"
#include "support/run.h"

namespace kda::test {
namespace {

// Whether the backward makes factors of its own where it is given none: kernels that fuse all
// stages have none in memory.
bool wants_factors(const RunResult& recomputed, const RunResult& kept) {
  return recomputed.backward_workspace > kept.backward_workspace;
}

class KeptConformance : public ::testing::TestWithParam<std::tuple<TestBackend, Case>> {};

TEST_P(KeptConformance, ResultsAreBitEqualWithAndWithout) {
  const auto& [backend, c] = GetParam();
  const CaseData data = make_data(c, backend.io);
  const RunResult recomputed = run_chunk(backend, c, data, {.keep_bits = true});
  KDA_SKIP_IF_REFUSED(backend, recomputed.unsupported);
  const RunResult kept = run_chunk(backend, c, data, {.keep_bits = true, .keep_factors = true});
  expect_no_faults(kept);
  ASSERT_EQ(kept.bits.size(), recomputed.bits.size());
  for (const auto& [quantity, bits] : recomputed.bits) {
    EXPECT_TRUE(bits == kept.bits.at(quantity)) << name_of(quantity);
  }
  if (wants_factors(recomputed, kept)) {
    EXPECT_LE(kept.backward_workspace + kept.kept_bytes, recomputed.backward_workspace + 4096)
        << "what was kept is not wanted from the workspace again";
  }
}

// A backward that wants factors must read what was kept: without the forward's values nothing is
// right.
TEST_P(KeptConformance, BackwardReadsWhatWasKept) {
  const auto& [backend, c] = GetParam();
  const CaseData data = make_data(c, backend.io);
  const RunResult good = run_chunk(backend, c, data, {.keep_bits = true, .keep_factors = true});
  KDA_SKIP_IF_REFUSED(backend, good.unsupported);
  const RunResult recomputed = run_chunk(backend, c, data, {.keep_bits = true});
  if (!wants_factors(recomputed, good))
    GTEST_SKIP() << "the backward of this call reads no factors";
  const RunResult spoilt = run_chunk(
      backend, c, data, {.keep_bits = true, .keep_factors = true, .spoil_kept_factors = true});
  EXPECT_FALSE(spoilt.bits.at(Quantity::kDq) == good.bits.at(Quantity::kDq));
}

std::vector<Case> kept_cases() {
  const Case small{.name = "small", .B = 2, .T = 70, .H = 1, .HV = 2, .K = 24, .V = 20, .seed = 93};
  Case layer = small;
  layer.name = "layer_k128";
  layer.K = layer.V = 128;
  layer.gate = GateInput::kSafe;
  layer.betas = Betas::kLogit;
  layer.qk_l2norm = true;
  layer.narrow_gate = true;
  Case states = layer;
  states.name = "layer_k128_states";
  states.h_kv = true;
  Case packed = states;
  packed.name = "packed";
  packed.B = 1;
  packed.T = 150;
  packed.cu = {0, 1, 1, 64, 130, 150};
  packed.gate = GateInput::kStandard;
  Case wide = small;
  wide.name = "k136_v256";
  wide.K = 136;
  wide.V = 256;
  return {small, layer, states, packed, wide};
}

INSTANTIATE_TEST_SUITE_P(All, KeptConformance,
                         ::testing::Combine(::testing::ValuesIn(test_backends()),
                                            ::testing::ValuesIn(kept_cases())),
                         BackendName());

}  // namespace
}  // namespace kda::test
