// The fused scans for Hopper: which calls they take, and calls of every shape class against the
// double oracle. tests/cuda/chunk_test.cpp runs the same comparison on the portable kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cuda/hopper_alone.h"
#include "cuda/hopper_cases.h"
#include "kda/cuda.h"
#include "support/oracle.h"
#include "support/run.h"
#include "support/tolerance.h"

namespace kda::test {
namespace {

TEST(HopperPath, NamesTheKernelsAndTheReason) {
  std::string reason;
  const std::string path = path_of(served("served"), DType::kBF16);
  if (!have_gpu(&reason)) {
    EXPECT_TRUE(path.find("there is no CUDA device") != std::string::npos ||
                path.find("no code for sm_90a") != std::string::npos)
        << path;
    return;
  }
  if (path != kFused) GTEST_SKIP() << path;
  const auto refused = [](Case c, DType io, const std::string& why) {
    const std::string text = path_of(c, io);
    EXPECT_EQ(text.rfind("portable kernels", 0), 0U) << text;
    EXPECT_NE(text.find(why), std::string::npos) << text;
  };
  Case c = served("varied");
  c.narrow_states = false;  // no call takes states in f16
  refused(c, DType::kF16, "bf16");
  c.narrow_states = true;
  c.K = c.V = 96;
  refused(c, DType::kBF16, "K = V = 64 or 128");
  c = served("varied");
  c.gate = GateInput::kReady;
  refused(c, DType::kBF16, "raw gate");
  c = served("varied");
  c.narrow_gate = false;
  refused(c, DType::kBF16, "g_raw");
  c = served("varied");
  c.narrow_states = false;
  refused(c, DType::kBF16, "h_kv");
  c = served("varied");
  c.qk_l2norm = false;
  refused(c, DType::kBF16, "qk_l2norm");
}

TEST(HopperPath, BackwardWithoutStates_IsPortable) {
  std::string reason;
  if (!have_gpu(&reason)) GTEST_SKIP() << reason;
  if (path_of(served("served"), DType::kBF16) != kFused) GTEST_SKIP();
  alignas(16) static char nowhere[16];
  const auto view = [](std::initializer_list<std::int64_t> shape) {
    TensorView v = view_of(nowhere, DType::kBF16, shape);
    v.space = MemorySpace::kCuda;
    return v;
  };
  ChunkBackwardParams p;
  p.in.q = p.in.k = p.in.v = p.in.g_raw = p.d_o = p.dq = view({1, 130, 2, 128});
  p.in.beta_logit = view({1, 130, 2});
  p.in.gate.lower_bound_ln = -5.0;
  p.in.qk_l2norm = true;
  EXPECT_NE(cuda::chunk_backward_path(p).find("h_kv"), std::string::npos);
  p.h_kv = view({3, 2, 128, 128});
  EXPECT_EQ(cuda::chunk_backward_path(p), kBackward);
}

// Both head sizes in both directions; what the backward refuses and the forward takes.
TEST(HopperPath, BackwardOfBothHeadSizes) {
  std::string reason;
  if (!have_gpu(&reason)) GTEST_SKIP() << reason;
  if (path_of(served("served"), DType::kBF16) != kFused) GTEST_SKIP();
  for (const std::int64_t d : {64, 128}) {
    Case c = served("d" + std::to_string(d));
    c.K = c.V = d;
    EXPECT_EQ(path_of(c, DType::kBF16), kFused) << c.name;
    EXPECT_EQ(backward_path_of(c, DType::kBF16), kBackward) << c.name;
    c.qk_l2norm = false;
    EXPECT_NE(backward_path_of(c, DType::kBF16).find("qk_l2norm"), std::string::npos) << c.name;
    c.qk_l2norm = true;
    c.h_kv = false;
    EXPECT_NE(backward_path_of(c, DType::kBF16).find("h_kv"), std::string::npos) << c.name;
    c.h_kv = true;
    c.narrow_states = false;
    EXPECT_NE(backward_path_of(c, DType::kBF16).find("h_kv"), std::string::npos) << c.name;
  }
  Case c = served("mixed");
  c.V = 64;
  EXPECT_NE(backward_path_of(c, DType::kBF16).find("K = V = 64 or 128"), std::string::npos);
}

TEST(HopperPath, SwitchedOff_SaysSo) {
  cuda::set_hopper_enabled(false);
  const std::string path = path_of(served("served"), DType::kBF16);
  cuda::set_hopper_enabled(true);
  EXPECT_NE(path.find("switched off for this process"), std::string::npos) << path;
}

TEST(HopperPath, StandardGatesSwitchedOff_SaysSo) {
  std::string reason;
  if (!have_gpu(&reason)) GTEST_SKIP() << reason;
  Case c = served("standard");
  c.gate = GateInput::kStandard;
  const std::string served_path = path_of(c, DType::kBF16);
  if (served_path != kFused) GTEST_SKIP() << served_path;
  cuda::set_hopper_standard_gate(false);
  const std::string path = path_of(c, DType::kBF16);
  cuda::set_hopper_standard_gate(true);
  EXPECT_NE(path.find("standard gates are switched off"), std::string::npos) << path;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (std::int64_t d : {64, 128}) {
    const std::string size = "_d" + std::to_string(d);
    for (std::int64_t T : {1, 15, 16, 17, 31, 63, 64, 65, 127, 128, 129, 257}) {
      Case c = served("tokens_" + std::to_string(T) + size);
      c.T = T;
      c.K = c.V = d;
      all.push_back(c);
    }
    for (const auto& [name, decays] :
         {std::pair<const char*, Decays>{"open", Decays::kZero}, {"saturated", Decays::kBound}}) {
      Case c = served(std::string("gate_") + name + size);
      c.K = c.V = d;
      c.decays = decays;
      all.push_back(c);
    }
    for (std::int64_t T : {1, 17, 33, 65}) {  // a block per head of 128, as there are so many
      Case c = served("whole_heads_" + std::to_string(T) + size);
      c.T = T;
      c.H = c.HV = 70;
      c.K = c.V = d;
      all.push_back(c);
    }
    Case whole = served("whole_heads" + size);
    whole.H = whole.HV = 70;
    whole.K = whole.V = d;
    all.push_back(whole);
    whole.name += "_packed";
    whole.T = 150;
    whole.H = 5;
    whole.HV = 10;
    whole.cu = {0, 1, 1, 64, 81, 81, 82, 147, 150};
    all.push_back(whole);
    Case c = served("rounds" + size);  // blocks of the local kernel take several chunks of heads
    c.T = 1100;
    c.H = c.HV = d == 64 ? 40 : 20;
    c.K = c.V = d;
    all.push_back(c);
    const auto add = [&](const std::string& name) -> Case& {
      Case other = served(name + size);
      other.K = other.V = d;
      all.push_back(other);
      return all.back();
    };
    Case& bare = add("no_states");
    bare.initial_state = bare.final_state = bare.d_final_state = bare.h_kv = false;
    add("beta_max_two").betas = Betas::kLogitDoubled;
    add("transposed_states").state_layout = Layout::kTransposed;
    Case& slices = add("slices");
    slices.B = 2;
    slices.in_layout = slices.out_layout = Layout::kFusedSlice;
    Case& grouped = add("grouped_batch");
    grouped.B = 2;
    grouped.HV = 6;
  }
  return all;
}

class HopperScan : public HopperFixture {};

class HopperChunk : public HopperScan, public ::testing::WithParamInterface<Case> {};

TEST_P(HopperChunk, MatchesTheDoubleRecurrence) {
  const Case& c = GetParam();
  expect_right(c, make_data(c, backend_.io));
}

INSTANTIATE_TEST_SUITE_P(All, HopperChunk, ::testing::ValuesIn(cases()), CaseName());

// Tokens of [B,T,heads,dim] from `first` on get other values.
void change_from(HostTensor* x, const Case& c, std::int64_t first, double value) {
  const auto per_token = x->data.size() / static_cast<std::size_t>(c.B * c.T);
  const auto begin = static_cast<std::size_t>(first) * per_token;
  for (std::size_t i = begin; i < x->data.size(); ++i)
    x->data[i] = i % 2 == 0 ? value : -value;
}

TEST_F(HopperScan, OutputsBeforeAChange_StayBitIdentical) {
  const Case c = served("causality");
  const CaseData data = make_data(c, backend_.io);
  const RunResult whole = run_chunk(backend_, c, data, {.backward = false, .keep_bits = true});
  for (std::int64_t first : {5, 16, 70}) {
    CaseData changed = data;
    for (HostTensor* x : {&changed.q, &changed.k, &changed.v, &changed.g, &changed.beta})
      change_from(x, c, first, 2.0);
    const RunResult other = run_chunk(backend_, c, changed, {.backward = false, .keep_bits = true});
    const auto& a = whole.bits.at(Quantity::kO);
    const auto& b = other.bits.at(Quantity::kO);
    const auto end = static_cast<std::ptrdiff_t>(a.size() / static_cast<std::size_t>(c.T)) * first;
    EXPECT_TRUE(std::equal(a.begin(), a.begin() + end, b.begin())) << "before token " << first;
    EXPECT_FALSE(a == b);
  }
}

// Sequences of a pack, one with NaN in it, against each on its own: the others do not notice.
TEST_F(HopperScan, PackedSequences_DoNotSeeEachOther) {
  Case c = served("pack");
  c.h_kv = false;
  c.T = 150;
  c.cu = {0, 33, 97, 150};
  CaseData data = make_data(c, backend_.io);
  const RunResult clean = run_chunk(backend_, c, data, {.backward = false, .keep_bits = true});
  const auto per_token = data.v.data.size() / static_cast<std::size_t>(c.T);
  for (std::int64_t t = 33; t < 97; ++t)
    data.v.data[static_cast<std::size_t>(t) * per_token] = std::numeric_limits<double>::quiet_NaN();
  const RunResult dirty = run_chunk(backend_, c, data, {.backward = false, .keep_bits = true});
  const auto& a = clean.bits.at(Quantity::kO);
  const auto& b = dirty.bits.at(Quantity::kO);
  const auto token = static_cast<std::ptrdiff_t>(a.size() / static_cast<std::size_t>(c.T));
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 33 * token, b.begin()));
  EXPECT_TRUE(std::equal(a.begin() + 97 * token, a.end(), b.begin() + 97 * token));
  EXPECT_FALSE(a == b);
}

// One head among 70 (a block each) and on its own (two blocks share it): the same bits.
TEST_F(HopperScan, WholeHeadsAndPairs_SameBits) {
  Case many = served("many");
  many.H = many.HV = 70;
  const CaseData data = make_data(many, backend_.io);
  const RunResult all = run_chunk(backend_, many, data);
  Case one = many;
  one.H = one.HV = 1;
  CaseData alone = make_data(one, backend_.io);
  constexpr std::size_t kHead = 37;
  const auto pick = [&](const HostTensor& from, HostTensor* to, std::size_t rows) {
    const std::size_t size = to->data.size() / rows;
    for (std::size_t row = 0; row < rows; ++row) {
      const auto at = static_cast<std::ptrdiff_t>((row * 70 + kHead) * size);
      std::copy_n(from.data.begin() + at, size,
                  to->data.begin() + static_cast<std::ptrdiff_t>(row * size));
    }
  };
  const auto tokens = static_cast<std::size_t>(many.T);
  pick(data.q, &alone.q, tokens);
  pick(data.k, &alone.k, tokens);
  pick(data.v, &alone.v, tokens);
  pick(data.g, &alone.g, tokens);
  pick(data.beta, &alone.beta, tokens);
  pick(data.a_log, &alone.a_log, 1);
  pick(data.dt_bias, &alone.dt_bias, 1);
  pick(data.state0, &alone.state0, 1);
  pick(data.d_o, &alone.d_o, tokens);
  pick(data.d_final_state, &alone.d_final_state, 1);
  const RunResult single = run_chunk(backend_, one, alone);
  const auto compare = [&](Quantity quantity, std::size_t rows) {
    HostTensor expected = single.values.at(quantity);
    pick(all.values.at(quantity), &expected, rows);
    EXPECT_EQ(expected.data, single.values.at(quantity).data) << name_of(quantity);
  };
  for (const Quantity quantity :
       {Quantity::kO, Quantity::kDq, Quantity::kDk, Quantity::kDv, Quantity::kDg, Quantity::kDbeta})
    compare(quantity, tokens);
  for (const Quantity quantity : {Quantity::kFinalState, Quantity::kDState0})
    compare(quantity, 1);
}

// Rows of a batch, and sequences of a pack, against each in a call of its own, with more chunks of
// heads than the local kernel has blocks.
TEST_F(HopperScan, RowsOfABatch_DoNotSeeEachOther) {
  Case c = served("rows");
  c.B = 3;
  c.T = 1000;
  c.H = 5;
  c.HV = 10;
  c.K = c.V = 64;
  expect_served(c);
  const CaseData data = make_data(c, backend_.io);
  const RunResult all = run_chunk(backend_, c, data);
  for (std::int64_t n = 0; n < c.B; ++n)
    expect_same_bits(backend_, c, data, all, n, n * c.T, (n + 1) * c.T);
}

TEST_F(HopperScan, SequencesOfAPack_DoNotSeeEachOther) {
  Case c = served("pack_bits");
  c.H = 5;
  c.HV = 10;
  c.K = c.V = 64;
  c.T = 2600;
  c.cu = {0, 1, 101, 1101, 1101, 1102, 1166, 2600};
  expect_served(c);
  const CaseData data = make_data(c, backend_.io);
  const RunResult all = run_chunk(backend_, c, data);
  for (std::int64_t n : {0, 1, 2, 4, 5, 6}) {
    const auto at = static_cast<std::size_t>(n);
    expect_same_bits(backend_, c, data, all, n, c.cu[at], c.cu[at + 1]);
  }
}

}  // namespace
}  // namespace kda::test
