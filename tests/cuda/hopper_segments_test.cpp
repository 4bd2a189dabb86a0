// Sequences cut into segments on Hopper: the result against the double oracle, and that the bits of
// a sequence depend on nothing else in the call. The rule: hopper_tiling_test.cpp.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cuda/hopper_alone.h"
#include "cuda/hopper_cases.h"
#include "support/oracle.h"
#include "support/tolerance.h"

namespace kda::test {
namespace {

class HopperSegments : public HopperFixture {
 protected:
  void TearDown() override { cuda::set_hopper_segments(true); }
};

// K = V = 64.
Case narrow(const std::string& name, std::int64_t heads) {
  Case c = served(name);
  c.H = c.HV = heads;
  c.K = c.V = 64;
  return c;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::int64_t d : {128, 64}) {
    const auto add = [&](const std::string& name, std::int64_t T) -> Case& {
      Case c = served(name + (d == 64 ? "_d64" : ""));
      c.T = T;
      c.H = c.HV = 1;
      c.K = c.V = d;
      all.push_back(c);
      return all.back();
    };
    add("tokens_4096", 4096);
    add("tokens_4097", 4097);
    add("open_gate", 4111).decays = Decays::kZero;  // nothing is forgotten from the first segment
    add("saturated_gate", 4100).decays = Decays::kBound;
    Case& bare = add("without_states", 4100);
    bare.initial_state = bare.final_state = bare.d_final_state = bare.h_kv = false;
    add("transposed_states", 4100).state_layout = Layout::kTransposed;
    Case& slices = add("slices", 4100);
    slices.in_layout = slices.out_layout = Layout::kFusedSlice;
    Case& grouped = add("grouped_batch", 4105);
    grouped.B = 2;
    grouped.H = d == 64 ? 2 : 1;
    grouped.HV = 2 * grouped.H;
    Case& packed = add("packed", 8500);
    packed.HV = 2;
    packed.cu = {0, 64, 4200, 4200, 4201, 8400, 8500};
    if (d == 128) {
      add("tokens_16400", 16400);
      add("beta_max_two", 4099).betas = Betas::kLogitDoubled;
      continue;
    }
    // The last segment ends with 2 and 3 chunks of 16. (Heads of 128: hopper_cluster_test.cpp.)
    for (std::int64_t T : {4096 + 17, 8192 + 48})
      add("tokens_" + std::to_string(T), T);
    add("standard_gate", 4100).gate = GateInput::kStandard;
    Case& far = add("standard_gate_far", 4100);  // chunks that are done over, of maps too
    far.gate = GateInput::kStandard;
    far.decays = Decays::kBound;
    Case& nine = add("nine_segments", 4100);  // all others: seventeen
    nine.H = nine.HV = 16;
    nine.decays = Decays::kZero;
  }
  return all;
}

class HopperSegmentCase : public HopperSegments, public ::testing::WithParamInterface<Case> {};

TEST_P(HopperSegmentCase, MatchesTheDoubleRecurrence) {
  const Case& c = GetParam();
  expect_right(c, make_data(c, backend_.io));
}

INSTANTIATE_TEST_SUITE_P(All, HopperSegmentCase, ::testing::ValuesIn(cases()), CaseName());

TEST_F(HopperSegments, SixteenHeads_AsInOnePiece) {
  const Case c = sixteen_heads();
  expect_served(c);
  const CaseData data = make_data(c, backend_.io);
  const RunResult cut = run_chunk(backend_, c, data);
  cuda::set_hopper_segments(false);
  expect_near(run_chunk(backend_, c, data), cut);
}
TEST_F(HopperSegments, SixteenNarrowHeads_AsInOnePiece) {
  Case c = narrow("narrow", 16);
  c.T = 4100;
  c.decays = Decays::kZero;
  expect_served(c);
  const CaseData data = make_data(c, backend_.io);
  const RunResult cut = run_chunk(backend_, c, data);
  cuda::set_hopper_segments(false);
  expect_near(run_chunk(backend_, c, data), cut);
}

// One row, and the same row among three.
TEST_F(HopperSegments, LongRows_DoNotSeeTheBatch) {
  for (const std::int64_t d : {64, 128}) {
    Case c = served("rows");
    c.B = 3;
    c.T = 4170;
    c.H = 1;
    c.HV = 2;
    c.K = c.V = d;
    expect_served(c);
    const CaseData data = make_data(c, backend_.io);
    const RunResult all = run_chunk(backend_, c, data);
    for (std::int64_t n = 0; n < c.B; ++n)
      expect_same_bits(backend_, c, data, all, n, n * c.T, (n + 1) * c.T);
  }
}

// Sequences of a pack, cut and whole, against each on its own.
TEST_F(HopperSegments, PackedSequences_DoNotSeeEachOther) {
  for (const std::int64_t d : {64, 128}) {
    Case c = served("pack");
    c.H = 1;
    c.HV = 2;
    c.K = c.V = d;
    c.T = 12500;
    c.cu = {0, 100, 4200, 4200, 8300, 12399, 12500};
    expect_served(c);
    const CaseData data = make_data(c, backend_.io);
    const RunResult all = run_chunk(backend_, c, data);
    for (std::int64_t n : {0, 1, 3, 4, 5}) {
      const auto at = static_cast<std::size_t>(n);
      expect_same_bits(backend_, c, data, all, n, c.cu[at], c.cu[at + 1]);
    }
  }
}

// Boundaries that only the device knows: the host can but bound the number of pieces.
TEST_F(HopperSegments, BoundariesOnTheDevice_SameBits) {
  for (const std::int64_t d : {64, 128}) {
    for (const auto& cu : {std::vector<std::int64_t>{0, 5000, 5100, 9300},
                           std::vector<std::int64_t>{0, 3000, 6000, 9300},
                           std::vector<std::int64_t>{0, 0, 9300, 9300}}) {
      Case c = served("device_boundaries");
      c.H = c.HV = 1;
      c.K = c.V = d;
      c.T = 9300;
      c.cu = cu;
      c.h_kv = false;
      expect_served(c);
      const CaseData data = make_data(c, backend_.io);
      const RunResult expected =
          run_chunk(backend_, c, data, {.backward = false, .keep_bits = true});
      const DeviceInputs inputs(backend_, c, data);
      DeviceTensor boundaries(*backend_.memory, DType::kI64, {4}, Layout::kContiguous);
      boundaries.upload(c.cu);
      DeviceTensor o(*backend_.memory, backend_.io, {1, c.T, 1, d}, Layout::kContiguous);
      DeviceTensor final_state(*backend_.memory, DType::kF32, {3, 1, d, d}, Layout::kContiguous);
      ChunkForwardParams p;
      p.in = inputs.operator_inputs(c);
      p.in.cu_seqlens = boundaries.view();
      p.o = o.view();
      p.final_state_kv = final_state.view();
      Context context;
      context.backend = Backend::kCuda;
      context.stream = backend_.memory->stream();
      const GuardedWorkspace workspace(*backend_.memory, chunk_forward_workspace_bytes(p, context));
      context.workspace = workspace.get();
      chunk_forward(p, context);
      EXPECT_EQ(o.bits(), expected.bits.at(Quantity::kO));
      EXPECT_EQ(final_state.bits(), expected.bits.at(Quantity::kFinalState));
      EXPECT_EQ(workspace.damage(), "");
    }
  }
}

// Ten thousand sequences of 0 to 3 tokens: every one its own answer.
TEST_F(HopperSegments, TenThousandSequences_MatchTheDoubleRecurrence) {
  Case c = served("many");
  c.H = c.HV = 1;
  c.initial_state = c.final_state = c.d_final_state = c.h_kv = false;
  c.cu = {0};
  for (int n = 0; n < 10000; ++n)
    c.cu.push_back(c.cu.back() + n * 7 % 4);
  c.T = c.cu.back();
  expect_served(c);
  const CaseData data = make_data(c, backend_.io);
  const Outputs expected = oracle(c, data, {.backward = false});
  const RunResult result = run_chunk(backend_, c, data, {.backward = false});
  ASSERT_EQ(result.unsupported, "");
  for (const std::string& fault : result.faults)
    ADD_FAILURE() << fault;
  expect_all_close(backend_, c, data, expected, result.values, nullptr);
}

}  // namespace
}  // namespace kda::test
