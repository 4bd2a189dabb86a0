// Standard gates on Hopper: no bound per token, so chunks that decay beyond what the factors can
// hold take another way (prep_exact.cuh in the scans, the kernels for any GPU in the local stage).
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cuda/hopper_cases.h"
#include "support/oracle.h"
#include "support/tolerance.h"

namespace kda::test {
namespace {

Case standard(const std::string& name) {
  Case c = served(name);
  c.gate = GateInput::kStandard;
  return c;
}

class HopperStandard : public HopperFixture {};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (std::int64_t T : {1, 15, 16, 17, 63, 64, 65, 257}) {
    Case c = standard("tokens_" + std::to_string(T));
    c.T = T;
    all.push_back(c);
  }
  for (std::int64_t d : {64, 128}) {
    for (const auto& [name, decays] :
         {std::pair<const char*, Decays>{"open", Decays::kZero}, {"far", Decays::kBound}}) {
      Case c = standard(std::string(name) + "_d" + std::to_string(d));
      c.K = c.V = d;
      c.decays = decays;  // far: half of all elements decay by about 30 nat, the others by nothing
      all.push_back(c);
    }
    Case whole = standard("whole_heads_d" + std::to_string(d));
    whole.H = whole.HV = 70;
    whole.K = whole.V = d;
    all.push_back(whole);
  }
  Case c = standard("no_bias");
  c.gate = GateInput::kStandardNoBias;
  all.push_back(c);
  c = standard("far_grouped");
  c.HV = 6;
  c.decays = Decays::kBound;
  all.push_back(c);
  c = standard("packed");
  c.T = 150;
  c.HV = 4;
  c.cu = {0, 1, 1, 64, 81, 81, 82, 147, 150};
  all.push_back(c);
  c.name = "far_packed";
  c.decays = Decays::kBound;
  all.push_back(c);
  c.name = "far_grouped_packed_d64";
  c.HV = 6;
  c.K = c.V = 64;
  all.push_back(c);
  c = standard("far_slices");
  c.B = 2;
  c.decays = Decays::kBound;
  c.in_layout = c.out_layout = Layout::kFusedSlice;
  all.push_back(c);
  c = standard("long");
  c.T = 2100;
  c.H = c.HV = 1;
  all.push_back(c);
  return all;
}

class HopperStandardCase : public HopperStandard, public ::testing::WithParamInterface<Case> {};

TEST_P(HopperStandardCase, MatchesTheDoubleRecurrence) {
  expect_right(GetParam(), make_data(GetParam(), backend_.io));
}

INSTANTIATE_TEST_SUITE_P(All, HopperStandardCase, ::testing::ValuesIn(cases()), CaseName());

// One channel of one token decays by 60 e^A nat: of its head one chunk takes the other way.
TEST_F(HopperStandard, OneFarToken_IsRight) {
  for (const std::int64_t token : {0, 77, 127, 199}) {
    Case c = standard("one_far_token_" + std::to_string(token));
    c.T = 200;
    CaseData data = make_data(c, backend_.io);
    data.g.at(0, token, 1, 5) = 60.0;
    expect_right(c, data);
  }
}

// Decays of 1,000 nat and more per token, everywhere or now and then.
TEST_F(HopperStandard, Resets_AreRight) {
  for (const std::int64_t period : {1, 7}) {
    Case c = standard("resets_" + std::to_string(period));
    c.T = 150;
    CaseData data = make_data(c, backend_.io);
    for (std::int64_t t = 0; t < c.T; t += period) {
      for (std::int64_t hv = 0; hv < c.HV; ++hv) {
        for (std::int64_t d = 0; d < c.K; ++d)
          data.g.at(0, t, hv, d) = 2000.0;
      }
    }
    expect_right(c, data);
  }
}

TEST_F(HopperStandard, Segments_MatchTheDoubleRecurrence) {
  for (const Decays decays : {Decays::kMild, Decays::kZero, Decays::kBound}) {
    Case c = standard("segments");
    c.T = 4200;
    c.H = c.HV = 1;
    c.decays = decays;
    expect_right(c, make_data(c, backend_.io));
  }
}

// A sequence of a pack and on its own: the way of a chunk does not depend on its neighbours.
TEST_F(HopperStandard, PackedSequences_DoNotSeeEachOther) {
  Case c = standard("pack");
  c.T = 150;
  c.cu = {0, 33, 97, 150};
  c.decays = Decays::kBound;
  expect_served(c);
  CaseData data = make_data(c, backend_.io);
  const RunResult before = run_chunk(backend_, c, data, {.keep_bits = true});
  for (std::int64_t t = 33; t < 97; ++t) {
    for (std::int64_t d = 0; d < c.K; ++d)
      data.g.at(0, t, 0, d) = -12.0;
  }
  const RunResult after = run_chunk(backend_, c, data, {.keep_bits = true});
  for (Quantity quantity : {Quantity::kO, Quantity::kDq, Quantity::kDg}) {
    const auto& a = before.bits.at(quantity);
    const auto& b = after.bits.at(quantity);
    const auto token = static_cast<std::ptrdiff_t>(a.size() / static_cast<std::size_t>(c.T));
    EXPECT_TRUE(std::equal(a.begin(), a.begin() + 33 * token, b.begin())) << name_of(quantity);
    EXPECT_TRUE(std::equal(a.begin() + 97 * token, a.end(), b.begin() + 97 * token))
        << name_of(quantity);
    EXPECT_FALSE(a == b);
  }
}

}  // namespace
}  // namespace kda::test
