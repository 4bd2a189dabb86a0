// Two blocks that share the prep of a head, against blocks that each do their own: the same bits,
// in every output, as value columns never mix.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cuda/hopper_cases.h"

namespace kda::test {
namespace {

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const std::string& name, std::int64_t T, std::int64_t heads) -> Case& {
    Case c = served(name);
    c.T = T;
    c.H = c.HV = heads;
    all.push_back(c);
    return all.back();
  };
  // An odd and an even number of 16-token chunks, so that the blocks change roles between heads.
  for (std::int64_t T : {1, 16, 17, 33, 257, 1000})
    add("tokens_" + std::to_string(T), T, 3);
  add("several_rounds", 100, 64).B = 4;
  Case& grouped = add("grouped", 130, 2);
  grouped.HV = 6;
  Case& packed = add("packed", 150, 5);
  packed.HV = 10;
  packed.cu = {0, 1, 1, 64, 81, 81, 82, 147, 150};
  Case& bare = add("without_states", 200, 2);
  bare.initial_state = bare.final_state = bare.d_final_state = bare.h_kv = false;
  add("transposed_states", 200, 2).state_layout = Layout::kTransposed;
  Case& slices = add("slices", 130, 2);
  slices.B = 2;
  slices.in_layout = slices.out_layout = Layout::kFusedSlice;
  add("standard_gate", 300, 2).gate = GateInput::kStandard;
  add("segments", 4200, 2);
  add("many_segments", 8192, 8);
  Case& batch = add("segments_batch", 4105, 1);
  batch.B = 3;
  batch.HV = 2;
  Case& mixed = add("segments_packed", 8500, 1);
  mixed.HV = 2;
  mixed.cu = {0, 64, 4200, 4200, 4201, 8400, 8500};
  add("segments_standard_gate", 4100, 1).gate = GateInput::kStandard;
  Case& lone = add("segments_without_states", 4100, 1);
  lone.initial_state = lone.final_state = lone.d_final_state = lone.h_kv = false;
  return all;
}

class HopperCluster : public HopperFixture, public ::testing::WithParamInterface<Case> {
 protected:
  void SetUp() override {
    HopperFixture::SetUp();
    before_ = cuda::hopper_clusters();
  }
  void TearDown() override { cuda::set_hopper_clusters(before_); }

 private:
  bool before_ = false;
};

TEST_P(HopperCluster, SameBitsAsBlocksAlone) {
  const Case& c = GetParam();
  expect_served(c);
  const CaseData data = make_data(c, backend_.io);
  cuda::set_hopper_clusters(false);
  const RunResult alone = run_chunk(backend_, c, data, {.keep_bits = true});
  cuda::set_hopper_clusters(true);
  for (int repeat = 0; repeat < 3; ++repeat) {
    const RunResult shared = run_chunk(backend_, c, data, {.keep_bits = true});
    ASSERT_EQ(shared.unsupported, "");
    for (const std::string& fault : shared.faults)
      ADD_FAILURE() << fault;
    for (const auto& [quantity, bits] : alone.bits)
      EXPECT_EQ(bits, shared.bits.at(quantity)) << name_of(quantity);
  }
}

INSTANTIATE_TEST_SUITE_P(All, HopperCluster, ::testing::ValuesIn(cases()), CaseName());

}  // namespace
}  // namespace kda::test
