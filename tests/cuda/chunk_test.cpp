// The whole operator on the GPU against the double oracle: every size class of the kernels, every
// gate, ragged and packed sequences, grouped heads.
#include <gtest/gtest.h>

#include <numeric>

#include "cuda/cuda_backends.h"
#include "support/half_model.h"
#include "support/oracle.h"
#include "support/run.h"
#include "support/tolerance.h"

namespace kda::test {
namespace {

std::vector<Case> cases() {
  std::vector<Case> all;
  for (std::int64_t T : {1, 15, 16, 17, 31, 63, 64, 65, 127, 128, 129, 257}) {
    all.push_back(
        {.name = "tokens_" + std::to_string(T), .T = T, .H = 2, .HV = 2, .K = 64, .V = 64});
  }
  for (std::int64_t d : {32, 60, 64, 96, 100, 128, 256}) {
    all.push_back({.name = "head_" + std::to_string(d), .B = 2, .T = 150, .K = d, .V = d});
  }
  // As a layer calls it: bf16 throughout takes the kernels of bounded gates.
  for (std::int64_t d : {32, 64, 96, 256}) {
    all.push_back({.name = "layer_" + std::to_string(d),
                   .B = 2,
                   .T = 257,
                   .H = 2,
                   .HV = 2,
                   .K = d,
                   .V = d,
                   .gate = GateInput::kSafe,
                   .betas = Betas::kLogit,
                   .qk_l2norm = true,
                   .h_kv = true,
                   .narrow_gate = true});
  }
  const std::pair<std::int64_t, std::int64_t> wide[] = {
      {256, 64}, {32, 256}, {200, 100}, {129, 255}};
  for (const auto& [K, V] : wide) {
    all.push_back({.name = "wide_" + std::to_string(K) + "_" + std::to_string(V),
                   .T = 257,
                   .H = 2,
                   .HV = 4,
                   .K = K,
                   .V = V,
                   .cu = {0, 1, 1, 64, 129, 257},
                   .gate = GateInput::kStandard,
                   .betas = Betas::kLogit,
                   .qk_l2norm = true});
  }
  all.push_back({.name = "wide_v", .T = 130, .K = 64, .V = 128});
  all.push_back({.name = "wide_k", .T = 130, .K = 128, .V = 64});
  all.push_back(
      {.name = "groups", .T = 130, .H = 2, .HV = 6, .K = 128, .V = 128, .qk_l2norm = true});
  const std::pair<const char*, GateInput> gates[] = {
      {"standard", GateInput::kStandard},
      {"standard_no_bias", GateInput::kStandardNoBias},
      {"safe", GateInput::kSafe},
      {"safe_no_a", GateInput::kSafeNoALog},
      {"safe_bare", GateInput::kSafeBare}};
  for (const auto& [name, gate] : gates) {
    all.push_back({.name = std::string("gate_") + name,
                   .T = 200,
                   .H = 2,
                   .HV = 2,
                   .K = 128,
                   .V = 128,
                   .gate = gate,
                   .betas = Betas::kLogit,
                   .qk_l2norm = true});
  }
  const std::pair<const char*, Decays> decays[] = {{"zero", Decays::kZero},
                                                   {"slow", Decays::kSlow},
                                                   {"bound", Decays::kBound},
                                                   {"strong", Decays::kStrong},
                                                   {"resets", Decays::kResets},
                                                   {"alternating", Decays::kAlternating},
                                                   {"all_resets", Decays::kAllResets},
                                                   {"mixed", Decays::kMixed},
                                                   {"memory", Decays::kMemory}};
  for (const auto& [name, decay] : decays) {
    all.push_back(
        {.name = std::string("decay_") + name, .T = 200, .K = 128, .V = 128, .decays = decay});
  }
  all.push_back({.name = "identical_keys",
                 .T = 300,
                 .K = 64,
                 .V = 64,
                 .decays = Decays::kSlow,
                 .keys = Keys::kIdentical,
                 .betas = Betas::kNearOne});
  all.push_back({.name = "beta_two", .T = 130, .K = 64, .V = 64, .betas = Betas::kTwo});
  all.push_back({.name = "beta_zero", .T = 130, .K = 64, .V = 64, .betas = Betas::kZero});
  all.push_back({.name = "tiny_keys",
                 .T = 130,
                 .K = 128,
                 .V = 128,
                 .keys = Keys::kTiny,
                 .betas = Betas::kLogitDoubled,
                 .qk_l2norm = true});
  all.push_back({.name = "packed",
                 .T = 500,
                 .H = 2,
                 .HV = 4,
                 .K = 128,
                 .V = 128,
                 .cu = {0, 1, 1, 64, 129, 130, 130, 330, 500},
                 .gate = GateInput::kSafe,
                 .betas = Betas::kLogit,
                 .qk_l2norm = true,
                 .h_kv = true,
                 .narrow_gate = true});
  all.push_back({.name = "packed_wide_grad",
                 .T = 257,
                 .K = 64,
                 .V = 64,
                 .cu = {0, 0, 100, 257, 257},
                 .wide_gradients = true,
                 .cu_i32 = true});
  std::vector<std::int64_t> many(70001);
  std::iota(many.begin(), many.end(), 0);
  all.push_back({.name = "packed_70000_sequences", .T = 70000, .K = 8, .V = 8, .cu = many});
  all.push_back({.name = "fused_slices",
                 .B = 2,
                 .T = 130,
                 .H = 2,
                 .HV = 2,
                 .K = 128,
                 .V = 128,
                 .in_layout = Layout::kFusedSlice,
                 .out_layout = Layout::kFusedSlice,
                 .state_layout = Layout::kTransposed});
  all.push_back({.name = "misaligned",
                 .B = 2,
                 .T = 70,
                 .H = 2,
                 .HV = 2,
                 .K = 64,
                 .V = 64,
                 .in_layout = Layout::kMisaligned,
                 .out_layout = Layout::kMisaligned});
  all.push_back({.name = "head_major",
                 .B = 2,
                 .T = 70,
                 .H = 2,
                 .HV = 2,
                 .K = 128,
                 .V = 128,
                 .h_kv = true,
                 .in_layout = Layout::kHeadMajor,
                 .out_layout = Layout::kHeadMajor});
  all.push_back({.name = "no_states",
                 .T = 70,
                 .K = 128,
                 .V = 128,
                 .initial_state = false,
                 .final_state = false,
                 .d_final_state = false});
  all.push_back({.name = "no_d_o", .T = 70, .K = 128, .V = 128, .d_o = false});
  all.push_back({.name = "long",
                 .T = 2000,
                 .H = 2,
                 .HV = 2,
                 .K = 128,
                 .V = 128,
                 .gate = GateInput::kSafe,
                 .betas = Betas::kLogit,
                 .qk_l2norm = true,
                 .h_kv = true,
                 .narrow_gate = true});
  return all;
}

class CudaChunk : public ::testing::TestWithParam<std::tuple<Case, int>> {};

TEST_P(CudaChunk, MatchesTheDoubleRecurrence) {
  std::string reason;
  if (!have_gpu(&reason)) GTEST_SKIP() << reason;
  const TestBackend backend = cuda_backends()[static_cast<std::size_t>(std::get<1>(GetParam()))];
  const Case& c = std::get<0>(GetParam());
  const CaseData data = make_data(c, backend.io);
  const Outputs expected = oracle(c, data);
  const RunResult result = run_chunk(backend, c, data, {.keep_bits = true});
  EXPECT_EQ(result.unsupported, "");
  for (const std::string& fault : result.faults)
    ADD_FAILURE() << fault;
  Outputs model;
  if (backend.arithmetic == Arithmetic::kHalfOperands) model = half_operand_model(c, data, {});
  expect_all_close(backend, c, data, expected, result.values, model.empty() ? nullptr : &model);
  const RunResult again = run_chunk(backend, c, data, {.keep_bits = true});
  for (const auto& [quantity, bits] : result.bits)
    EXPECT_EQ(bits, again.bits.at(quantity)) << name_of(quantity) << ": two runs differ";
}

TEST_P(CudaChunk, RecurrentMatchesTheDoubleRecurrence) {
  std::string reason;
  if (!have_gpu(&reason)) GTEST_SKIP() << reason;
  const TestBackend backend = cuda_backends()[static_cast<std::size_t>(std::get<1>(GetParam()))];
  const Case& c = std::get<0>(GetParam());
  const CaseData data = make_data(c, backend.io);
  const Outputs expected = oracle(c, data, {.backward = false});
  const RunResult result = run_recurrent(backend, c, data);
  for (const std::string& fault : result.faults)
    ADD_FAILURE() << fault;
  Outputs states;
  for (const auto& [quantity, value] : result.values)
    states[quantity] = value;
  expect_all_close(backend, c, data, expected, states, nullptr);
}

std::string test_name(const ::testing::TestParamInfo<std::tuple<Case, int>>& test) {
  constexpr const char* kTypes[] = {"f32", "bf16", "f16"};
  return std::get<0>(test.param).name + "_" + kTypes[std::get<1>(test.param)];
}

INSTANTIATE_TEST_SUITE_P(All, CudaChunk,
                         ::testing::Combine(::testing::ValuesIn(cases()),
                                            ::testing::Values(0, 1, 2)),
                         test_name);

}  // namespace
}  // namespace kda::test
