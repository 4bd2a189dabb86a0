// Properties that need no reference: what may depend on what, bit for bit.
#include <gtest/gtest.h>

#include <limits>

#include "conformance/expect.h"
#include "kda/parallel.h"
#include "support/slices.h"
#include "support/tolerance.h"

namespace kda::test {
namespace {

constexpr RunOptions kKeepBits{.keep_bits = true};

class Invariants : public ::testing::TestWithParam<TestBackend> {};

// A layer-like call; the tests below change what they need.
Case base_case() {
  return {.name = "base", .B = 1, .T = 150, .H = 1, .HV = 2, .K = 24, .V = 20, .seed = 41};
}

void expect_same_bits(const RunResult& a, const Slice& in_a, const RunResult& b, const Slice& in_b,
                      const std::string& what) {
  for (const auto& [quantity, bits] : a.bits) {
    EXPECT_EQ(slice_bits(a, quantity, in_a), slice_bits(b, quantity, in_b))
        << what << ": " << name_of(quantity);
  }
}

// Every bit of every output, parameters' gradients and checkpoints included.
void expect_equal_runs(const RunResult& a, const RunResult& b, const std::string& what) {
  for (const auto& [quantity, bits] : a.bits) {
    EXPECT_TRUE(bits == b.bits.at(quantity)) << what << ": " << name_of(quantity);
  }
}

// Replaces everything that token t of every row and head reads.
void change_token(CaseData* data, std::int64_t t) {
  for (HostTensor* x : {&data->q, &data->k, &data->v, &data->g, &data->beta}) {
    const std::int64_t T = x->extent(1);
    const auto row = static_cast<std::int64_t>(x->data.size()) / (x->extent(0) * T);
    for (std::int64_t b = 0; b < x->extent(0); ++b) {
      for (std::int64_t i = 0; i < row; ++i) {
        double& value = x->data[static_cast<std::size_t>((b * T + t) * row + i)];
        value = 0.5 * value - (x == &data->g ? 0.25 : -0.125);  // g stays <= 0
      }
    }
  }
}

TEST_P(Invariants, Causality_OutputsBeforeAChangeStayBitIdentical) {
  const TestBackend& backend = GetParam();
  for (int chunk : {16, 64}) {
    Case c = base_case();
    c.chunk = chunk;
    const CaseData data = make_data(c, backend.io);
    const RunOptions options{.backward = false, .keep_bits = true};
    const RunResult before = run_chunk(backend, c, data, options);
    KDA_SKIP_IF_REFUSED(backend, before.unsupported);
    const RunResult recurrent_before = run_recurrent(backend, c, data, options);
    for (std::int64_t t : {1, 15, 16, 17, 31, 63, 64, 65, 100, 149}) {
      CaseData changed = data;
      change_token(&changed, t);
      const RunResult after = run_chunk(backend, c, changed, options);
      const RunResult recurrent_after = run_recurrent(backend, c, changed, options);
      const Slice past{0, 0, t, 0};
      const std::string what = "chunk " + std::to_string(chunk) + " t " + std::to_string(t);
      EXPECT_EQ(slice_bits(before, Quantity::kO, past), slice_bits(after, Quantity::kO, past))
          << what;
      EXPECT_EQ(slice_bits(recurrent_before, Quantity::kO, past),
                slice_bits(recurrent_after, Quantity::kO, past))
          << what;
      const Slice now{0, t, 1, 0};
      EXPECT_NE(slice_bits(before, Quantity::kO, now), slice_bits(after, Quantity::kO, now))
          << what << ": the change must be seen at t itself";
    }
  }
}

// A gradient at token t comes from outputs at t and later: changing d_o at t leaves all gradients
// after t as they are.
TEST_P(Invariants, Causality_GradientsAfterAChangedLossStayBitIdentical) {
  const TestBackend& backend = GetParam();
  const Case c = base_case();
  const CaseData data = make_data(c, backend.io);
  const RunResult before = run_chunk(backend, c, data, kKeepBits);
  KDA_SKIP_IF_REFUSED(backend, before.unsupported);
  for (std::int64_t t : {0, 15, 63, 64, 100, 148}) {
    CaseData changed = data;
    for (std::int64_t hv = 0; hv < c.HV; ++hv) {
      for (std::int64_t i = 0; i < c.V; ++i)
        changed.d_o.at(0, t, hv, i) += 1.0;
    }
    const RunResult after = run_chunk(backend, c, changed, kKeepBits);
    const Slice future{0, t + 1, c.T - t - 1, 0};
    for (Quantity quantity :
         {Quantity::kDq, Quantity::kDk, Quantity::kDv, Quantity::kDg, Quantity::kDbeta}) {
      EXPECT_EQ(slice_bits(before, quantity, future), slice_bits(after, quantity, future))
          << name_of(quantity) << " t " << t;
    }
    const Slice now{0, t, 1, 0};
    EXPECT_NE(slice_bits(before, Quantity::kDv, now), slice_bits(after, Quantity::kDv, now))
        << "the change must be seen at t " << t;
  }
}

// Every sequence of `c` on its own must give the bits that it gives inside the call.
void expect_sequences_independent(const TestBackend& backend, const Case& c) {
  const CaseData data = make_data(c, backend.io);
  const RunResult together = run_chunk(backend, c, data, kKeepBits);
  KDA_SKIP_IF_REFUSED(backend, together.unsupported);
  const RunResult together_recurrent = run_recurrent(backend, c, data, kKeepBits);
  for (std::int64_t n = 0; n < c.N(); ++n) {
    const Slice slice = sequence_of(c, n);
    if (slice.length == 0) continue;
    const Case alone = slice_case(c, slice);
    const CaseData alone_data = slice_data(data, slice);
    const Slice whole{0, 0, slice.length, 0};
    const std::string what = c.name + " sequence " + std::to_string(n);
    expect_same_bits(together, slice, run_chunk(backend, alone, alone_data, kKeepBits), whole,
                     what);
    expect_same_bits(together_recurrent, slice,
                     run_recurrent(backend, alone, alone_data, kKeepBits), whole,
                     what + " recurrent");
  }
}

TEST_P(Invariants, Batch_RowsDoNotSeeEachOther) {
  Case c = base_case();
  c.name = "batch";
  c.B = 3;
  c.T = 70;
  expect_sequences_independent(GetParam(), c);
  c.gate = GateInput::kSafe;
  c.betas = Betas::kLogit;
  c.qk_l2norm = true;
  c.H = 2;
  c.HV = 4;
  expect_sequences_independent(GetParam(), c);
}

TEST_P(Invariants, Packing_SequencesDoNotSeeEachOther) {
  for (int chunk : {16, 64, 128}) {
    Case c = base_case();
    c.name = "packed_c" + std::to_string(chunk);
    c.T = 281;
    c.cu = {0, 0, 65, 131, 132, 202, 281};
    c.chunk = chunk;
    expect_sequences_independent(GetParam(), c);
  }
}

// NaN in sequence 0 must not reach its neighbours, which share tiles with it.
TEST_P(Invariants, Packing_NaNStaysInItsSequence) {
  const TestBackend& backend = GetParam();
  Case c = base_case();
  c.T = 140;
  c.cu = {0, 40, 41, 140};
  const CaseData data = make_data(c, backend.io);
  const RunResult clean = run_chunk(backend, c, data, kKeepBits);
  KDA_SKIP_IF_REFUSED(backend, clean.unsupported);
  const RunResult clean_recurrent = run_recurrent(backend, c, data, kKeepBits);
  CaseData poisoned = data;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (HostTensor* x :
       {&poisoned.q, &poisoned.k, &poisoned.v, &poisoned.g, &poisoned.beta, &poisoned.d_o}) {
    const auto row = x->data.size() / static_cast<std::size_t>(c.T);
    std::fill_n(x->data.begin(), 40 * row, nan);
  }
  const RunResult dirty = run_chunk(backend, c, poisoned, kKeepBits);
  const RunResult dirty_recurrent = run_recurrent(backend, c, poisoned, kKeepBits);
  for (std::int64_t n : {1, 2}) {
    const Slice slice = sequence_of(c, n);
    expect_same_bits(clean, slice, dirty, slice, "sequence " + std::to_string(n));
    expect_same_bits(clean_recurrent, slice, dirty_recurrent, slice,
                     "recurrent sequence " + std::to_string(n));
  }
  EXPECT_TRUE(std::isnan(dirty.values.at(Quantity::kO).data[0]));
}

TEST_P(Invariants, Repeats_AreBitIdentical) {
  const TestBackend& backend = GetParam();
  Case c = base_case();
  c.T = 281;
  c.cu = {0, 65, 131, 202, 281};  // tails of 1, 2, 7 and 15 tokens
  c.gate = GateInput::kSafe;
  c.betas = Betas::kLogit;
  c.h_kv = true;
  const CaseData data = make_data(c, backend.io);
  const RunResult first = run_chunk(backend, c, data, kKeepBits);
  KDA_SKIP_IF_REFUSED(backend, first.unsupported);
  for (int i = 0; i < 19; ++i) {
    expect_equal_runs(first, run_chunk(backend, c, data, kKeepBits), "run " + std::to_string(i));
  }
}

// An absent output is not computed, and its absence changes nothing else.
TEST_P(Invariants, Backward_EachOutputAlone) {
  const TestBackend& backend = GetParam();
  Case c = base_case();
  c.T = 70;
  c.H = 2;
  c.HV = 4;
  c.gate = GateInput::kSafe;
  c.betas = Betas::kLogit;
  c.qk_l2norm = true;
  const CaseData data = make_data(c, backend.io);
  const RunResult all = run_chunk(backend, c, data, {.forward = false, .keep_bits = true});
  KDA_SKIP_IF_REFUSED(backend, all.unsupported);
  for (const auto& [quantity, bits] : all.bits) {
    const RunResult one = run_chunk(
        backend, c, data, {.forward = false, .keep_bits = true, .only_gradient = quantity});
    ASSERT_EQ(one.bits.size(), 1U);
    EXPECT_TRUE(one.bits.at(quantity) == bits) << name_of(quantity);
    expect_no_faults(one);
  }
}

// Inputs may have stride 0: one decay for all tokens, one step size for everything.
TEST_P(Invariants, Inputs_MayBroadcast) {
  const TestBackend& backend = GetParam();
  const Case c = base_case();
  CaseData data = make_data(c, backend.io);
  const auto per_token = static_cast<std::size_t>(c.HV * c.K);
  for (std::size_t i = per_token; i < data.g.data.size(); ++i) {
    data.g.data[i] = data.g.data[i % per_token];
  }
  std::fill(data.beta.data.begin(), data.beta.data.end(), 0.75);
  const RunResult whole = run_chunk(backend, c, data, kKeepBits);
  KDA_SKIP_IF_REFUSED(backend, whole.unsupported);

  const DeviceInputs inputs(backend, c, data);
  OperatorInputs in = inputs.operator_inputs(c);
  in.g_ln.stride[1] = 0;
  in.beta.stride = {0, 0, 0};
  DeviceTensor o(*backend.memory, backend.io, {c.B, c.T, c.HV, c.V}, Layout::kContiguous);
  DeviceTensor dk(*backend.memory, backend.io, {c.B, c.T, c.H, c.K}, Layout::kContiguous);
  ChunkForwardParams forward;
  forward.in = in;
  forward.o = o.view();
  ChunkBackwardParams backward;
  backward.in = in;
  backward.d_o = inputs.d_o.view();
  backward.d_final_state_kv = inputs.d_final_state.view();
  backward.dk = dk.view();
  Context context{.backend = backend.backend, .stream = backend.memory->stream()};
  const GuardedWorkspace first(*backend.memory, chunk_forward_workspace_bytes(forward, context));
  context.workspace = first.get();
  chunk_forward(forward, context);
  const GuardedWorkspace second(*backend.memory, chunk_backward_workspace_bytes(backward, context));
  context.workspace = second.get();
  chunk_backward(backward, context);
  EXPECT_TRUE(o.bits() == whole.bits.at(Quantity::kO));
  EXPECT_TRUE(dk.bits() == whole.bits.at(Quantity::kDk));
}

// With and without the caller's scratch memory.
TEST_P(Invariants, Workspace_MakesNoDifference) {
  const TestBackend& backend = GetParam();
  if (backend.memory->space() != MemorySpace::kHost) {
    GTEST_SKIP() << "device backends always need the caller's workspace";
  }
  Case c = base_case();
  c.gate = GateInput::kStandard;
  const CaseData data = make_data(c, backend.io);
  const RunResult given = run_chunk(backend, c, data, kKeepBits);
  KDA_SKIP_IF_REFUSED(backend, given.unsupported);
  expect_equal_runs(given,
                    run_chunk(backend, c, data, {.give_workspace = false, .keep_bits = true}),
                    "without a workspace");
}

// A byte less than the call asked for is an error, not a write past the end.
TEST_P(Invariants, Workspace_TooSmallIsAnError) {
  const TestBackend& backend = GetParam();
  const Case c = base_case();
  const CaseData data = make_data(c, backend.io);
  const DeviceInputs inputs(backend, c, data);
  DeviceTensor o(*backend.memory, backend.io, {c.B, c.T, c.HV, c.V}, Layout::kContiguous);
  ChunkForwardParams p;
  p.in = inputs.operator_inputs(c);
  p.o = o.view();
  std::size_t wanted = 0;
  const std::string refusal =
      refusal_of([&] { wanted = chunk_forward_workspace_bytes(p, {.backend = backend.backend}); });
  KDA_SKIP_IF_REFUSED(backend, refusal);
  if (wanted == 0) return;  // it takes what it gets: nothing
  try {
    run_chunk(backend, c, data, {.backward = false, .workspace_shortfall = 1});
    ADD_FAILURE() << "accepted " << wanted - 1 << " bytes of " << wanted;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory) << error.what();
    EXPECT_NE(std::string(error.what()).find("workspace"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(std::to_string(wanted)), std::string::npos)
        << error.what();
  }
}

TEST_P(Invariants, Threads_MakeNoDifference) {
  const TestBackend& backend = GetParam();
  if (backend.memory->space() != MemorySpace::kHost) GTEST_SKIP() << "not a host backend";
  Case c = base_case();
  c.B = 2;
  c.H = 2;
  c.HV = 4;
  c.gate = GateInput::kStandard;
  const CaseData data = make_data(c, backend.io);
  set_num_threads(1);
  const RunResult one = run_chunk(backend, c, data, kKeepBits);
  const RunResult one_recurrent = run_recurrent(backend, c, data, kKeepBits);
  for (int threads : {2, 3}) {
    set_num_threads(threads);
    const std::string what = std::to_string(threads) + " threads";
    expect_equal_runs(one, run_chunk(backend, c, data, kKeepBits), what);
    expect_equal_runs(one_recurrent, run_recurrent(backend, c, data, kKeepBits),
                      what + " recurrent");
  }
  set_num_threads(0);
  KDA_SKIP_IF_REFUSED(backend, one.unsupported);
}

// Value head hv reads query/key head hv / G: the same call with q and k repeated by hand gives the
// same o, and its dq, dk summed over each group are the folded ones.
TEST_P(Invariants, Groups_EqualRepeatedQueries) {
  const TestBackend& backend = GetParam();
  Case c = base_case();
  c.T = 70;
  c.H = 2;
  c.HV = 6;
  c.wide_gradients = true;
  const CaseData data = make_data(c, backend.io);
  const RunResult grouped = run_chunk(backend, c, data, kKeepBits);
  KDA_SKIP_IF_REFUSED(backend, grouped.unsupported);
  Case repeated = c;
  repeated.H = c.HV;
  CaseData repeated_data = data;
  for (auto [from, to] : {std::pair{&data.q, &repeated_data.q}, {&data.k, &repeated_data.k}}) {
    *to = HostTensor({c.B, c.T, c.HV, c.K});
    for (std::int64_t t = 0; t < c.T; ++t) {
      for (std::int64_t hv = 0; hv < c.HV; ++hv) {
        for (std::int64_t k = 0; k < c.K; ++k)
          to->at(0, t, hv, k) = from->at(0, t, hv / 3, k);
      }
    }
  }
  const RunResult by_hand = run_chunk(backend, repeated, repeated_data, kKeepBits);
  for (Quantity quantity : {Quantity::kO, Quantity::kFinalState, Quantity::kDv, Quantity::kDg,
                            Quantity::kDbeta, Quantity::kDState0}) {
    EXPECT_TRUE(grouped.bits.at(quantity) == by_hand.bits.at(quantity)) << name_of(quantity);
  }
  for (Quantity quantity : {Quantity::kDq, Quantity::kDk}) {
    HostTensor folded({c.B, c.T, c.H, c.K});
    for (std::int64_t t = 0; t < c.T; ++t) {
      for (std::int64_t hv = 0; hv < c.HV; ++hv) {
        for (std::int64_t k = 0; k < c.K; ++k) {
          folded.at(0, t, hv / 3, k) += by_hand.values.at(quantity).at(0, t, hv, k);
        }
      }
    }
    expect_close({&backend, "groups", quantity, 0.0, nullptr}, folded, grouped.values.at(quantity));
  }
}

// A prompt in pieces, each starting from the state that the one before left.
TEST_P(Invariants, Pieces_EqualOneCall) {
  const TestBackend& backend = GetParam();
  Case c = base_case();
  c.T = 200;
  const CaseData data = make_data(c, backend.io);
  const RunOptions forward_only{.backward = false};
  const RunResult whole = run_chunk(backend, c, data, forward_only);
  KDA_SKIP_IF_REFUSED(backend, whole.unsupported);
  for (std::int64_t piece : {128, 64, 63, 16, 1}) {
    for (bool recurrent : {false, true}) {
      HostTensor o(whole.values.at(Quantity::kO).shape);
      HostTensor state = data.state0;
      auto out = o.data.begin();
      for (std::int64_t begin = 0; begin < c.T; begin += piece) {
        const Slice slice{0, begin, std::min(piece, c.T - begin), 0};
        CaseData part = slice_data(data, slice);
        part.state0 = state;
        const Case part_case = slice_case(c, slice);
        const RunResult result = recurrent ? run_recurrent(backend, part_case, part, forward_only)
                                           : run_chunk(backend, part_case, part, forward_only);
        state = result.values.at(Quantity::kFinalState);
        const std::vector<double>& rows = result.values.at(Quantity::kO).data;
        out = std::copy(rows.begin(), rows.end(), out);
      }
      const std::string name =
          std::string(recurrent ? "recurrent" : "chunk") + "_pieces_of_" + std::to_string(piece);
      expect_close({&backend, name, Quantity::kO, 0.0, nullptr}, whole.values.at(Quantity::kO), o);
      expect_close({&backend, name, Quantity::kFinalState, 0.0, nullptr},
                   whole.values.at(Quantity::kFinalState), state);
    }
  }
}

// A sequence without tokens hands its state through, forward and backward.
TEST_P(Invariants, EmptySequence_PassesStatesThrough) {
  const TestBackend& backend = GetParam();
  Case c = base_case();
  c.T = 65;
  c.cu = {0, 0, 65, 65};
  const CaseData data = make_data(c, backend.io);
  const RunResult result = run_chunk(backend, c, data);
  KDA_SKIP_IF_REFUSED(backend, result.unsupported);
  const RunResult recurrent = run_recurrent(backend, c, data);
  const std::size_t n = static_cast<std::size_t>(c.HV * c.K * c.V);
  for (std::size_t state : {0U, 2U}) {
    for (std::size_t i = state * n; i < (state + 1) * n; ++i) {
      ASSERT_EQ(result.values.at(Quantity::kFinalState).data[i], data.state0.data[i]);
      ASSERT_EQ(recurrent.values.at(Quantity::kFinalState).data[i], data.state0.data[i]);
      ASSERT_EQ(result.values.at(Quantity::kDState0).data[i], data.d_final_state.data[i]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Invariants, ::testing::ValuesIn(test_backends()), BackendName());

}  // namespace
}  // namespace kda::test
