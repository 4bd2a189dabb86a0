// The chunked form (L2) equals the token recurrence (L1) in double, forward and backward, for every
// chunk length and every gate.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/problem.h"
#include "ref/chunk.h"
#include "support/oracle.h"
#include "support/record.h"
#include "support/run.h"

namespace kda::test {
namespace {

// L2 through ref::chunk_forward and chunk_backward with a chunk length that the public API does not
// offer, so that short sequences have many chunks.
Outputs chunked(const Case& c, const CaseData& data, int C) {
  Outputs out;
  const ChunkBackwardParams backward = f64_backward_params(c, data, &out);
  core::Problem problem = core::check_chunk_backward(backward);
  problem.chunk = C;
  ref::chunk_backward<double>(backward, problem);

  HostTensor o({c.B, c.T, c.HV, c.V});
  HostTensor final_state({c.N(), c.HV, c.K, c.V});
  ChunkForwardParams forward;
  forward.in = backward.in;
  forward.o = view_of(o.data.data(), {c.B, c.T, c.HV, c.V});
  forward.final_state_kv = view_of(final_state.data.data(), {c.N(), c.HV, c.K, c.V});
  ref::chunk_forward<double>(forward, problem);
  out[Quantity::kO] = std::move(o);
  out[Quantity::kFinalState] = std::move(final_state);
  return out;
}

void expect_same(const Case& c, int C, const Outputs& expected, const Outputs& given) {
  ASSERT_EQ(expected.size(), given.size());
  for (const auto& [quantity, tensor] : expected) {
    double largest = 1.0;
    double worst = 0.0;
    for (std::size_t i = 0; i < tensor.data.size(); ++i) {
      largest = std::max(largest, std::abs(tensor.data[i]));
      const double difference = std::abs(tensor.data[i] - given.at(quantity).data[i]);
      worst = std::isfinite(difference) ? std::max(worst, difference) : INFINITY;
    }
    record_difference(worst / largest);
    EXPECT_LE(worst, 1e-12 * largest) << c.name << " C=" << C << " " << name_of(quantity);
  }
}

class Forms : public ::testing::TestWithParam<Case> {};

TEST_P(Forms, ChunkedEqualsRecurrent) {
  const Case& c = GetParam();
  const CaseData data = make_data(c, DType::kF64);
  const Outputs expected = oracle(c, data);
  for (int C : {1, 2, 5, 16, 64})
    expect_same(c, C, expected, chunked(c, data, C));
}

std::vector<Case> form_cases() {
  std::vector<Case> cases;
  for (auto [name, decays] :
       std::initializer_list<std::pair<const char*, Decays>>{{"mild", Decays::kMild},
                                                             {"zero", Decays::kZero},
                                                             {"bound", Decays::kBound},
                                                             {"resets", Decays::kResets},
                                                             {"alternating", Decays::kAlternating},
                                                             {"all_resets", Decays::kAllResets},
                                                             {"mixed", Decays::kMixed}}) {
    cases.push_back({.name = name,
                     .B = 2,
                     .T = 37,
                     .H = 2,
                     .HV = 4,
                     .K = 5,
                     .V = 4,
                     .decays = decays,
                     .seed = 11});
  }
  cases.push_back({.name = "beta_two",
                   .T = 70,
                   .K = 8,
                   .V = 3,
                   .decays = Decays::kZero,
                   .keys = Keys::kIdentical,
                   .betas = Betas::kTwo,
                   .seed = 12});
  cases.push_back({.name = "identical_keys",
                   .T = 70,
                   .K = 8,
                   .V = 3,
                   .decays = Decays::kSlow,
                   .keys = Keys::kIdentical,
                   .betas = Betas::kNearOne,
                   .seed = 13});
  cases.push_back({.name = "zero_keys",
                   .T = 20,
                   .K = 8,
                   .V = 3,
                   .keys = Keys::kSomeZero,
                   .qk_l2norm = true,
                   .seed = 14});
  cases.push_back({.name = "packed",
                   .T = 37,
                   .H = 1,
                   .HV = 3,
                   .K = 6,
                   .V = 7,
                   .cu = {0, 0, 17, 18, 18, 37, 37},
                   .gate = GateInput::kSafe,
                   .betas = Betas::kLogitDoubled,
                   .qk_l2norm = true,
                   .seed = 15});
  cases.push_back({.name = "standard_gate",
                   .T = 37,
                   .K = 6,
                   .V = 7,
                   .gate = GateInput::kStandard,
                   .betas = Betas::kLogit,
                   .seed = 16});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Ref, Forms, ::testing::ValuesIn(form_cases()), CaseName());

}  // namespace
}  // namespace kda::test
