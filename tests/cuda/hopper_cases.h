// What the tests of the Hopper kernels share: a case that these kernels serve, and a fixture that
// skips where they do not run.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <string>

#include "cuda/cuda_backends.h"
#include "kda/cuda.h"
#include "support/oracle.h"
#include "support/run.h"
#include "support/tolerance.h"

namespace kda::test {

inline constexpr const char* kFused = "fused kernel for Hopper (sm_90a)";
inline constexpr const char* kBackward = "kernels for Hopper (sm_90a)";

// A case that both directions serve, to be varied.
inline Case served(const std::string& name) {
  return {.name = name,
          .T = 130,
          .H = 2,
          .HV = 2,
          .K = 128,
          .V = 128,
          .gate = GateInput::kSafe,
          .betas = Betas::kLogit,
          .qk_l2norm = true,
          .h_kv = true,
          .narrow_gate = true,
          .narrow_states = true};
}

// As many heads as are cut into segments, with open gates: closed ones forget where one began.
inline Case sixteen_heads() {
  Case c = served("sixteen_heads");
  c.T = 8192;
  c.H = c.HV = 16;
  c.decays = Decays::kZero;
  return c;
}

// A case's inputs where nothing reads them, for questions about paths.
struct NoCall {
  alignas(16) static inline char nowhere[16];
  static TensorView view(DType dtype, std::initializer_list<std::int64_t> shape) {
    TensorView v = view_of(nowhere, dtype, shape);
    v.space = MemorySpace::kCuda;
    return v;
  }

  NoCall(const Case& from, DType io) : c(from), dtype(dtypes_of(from, io)) {
    in.q = in.k = view(dtype.io, {c.B, c.T, c.H, c.K});
    in.v = view(dtype.io, {c.B, c.T, c.HV, c.V});
    (c.raw_gate() ? in.g_raw : in.g_ln) = view(dtype.gate_beta, {c.B, c.T, c.HV, c.K});
    if (c.has_a_log()) in.gate.a_log = view(dtype.params, {c.HV});
    if (c.safe_gate()) in.gate.lower_bound_ln = -5.0;
    (c.beta_is_logit() ? in.beta_logit : in.beta) = view(dtype.gate_beta, {c.B, c.T, c.HV});
    in.qk_l2norm = c.qk_l2norm;
    if (!c.cu.empty()) {
      in.cu_seqlens = view_of(c.cu.data(), {static_cast<std::int64_t>(c.cu.size())});
    }
  }
  TensorView states() const {
    return view(c.narrow_states ? dtype.io : dtype.params, {num_state_blocks(in), c.HV, c.K, c.V});
  }

  Case c;
  CaseDTypes dtype;
  OperatorInputs in;
};

// The path of a case's forward call, and of its backward call.
inline std::string path_of(const Case& c, DType io) {
  const NoCall call(c, io);
  ChunkForwardParams p;
  p.in = call.in;
  p.o = NoCall::view(call.dtype.io, {c.B, c.T, c.HV, c.V});
  if (c.h_kv) p.h_kv = call.states();
  return cuda::chunk_forward_path(p);
}
inline std::string backward_path_of(const Case& c, DType io) {
  const NoCall call(c, io);
  ChunkBackwardParams p;
  p.in = call.in;
  p.d_o = NoCall::view(call.dtype.io, {c.B, c.T, c.HV, c.V});
  p.dq = NoCall::view(call.dtype.gradient, {c.B, c.T, c.H, c.K});
  if (c.h_kv) p.h_kv = call.states();
  return cuda::chunk_backward_path(p);
}

// rms(a - b) / rms(a).
inline double distance(const HostTensor& a, const HostTensor& b) {
  double difference = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < a.data.size(); ++i) {
    difference += (a.data[i] - b.data[i]) * (a.data[i] - b.data[i]);
    size += a.data[i] * a.data[i];
  }
  return std::sqrt(difference / size);
}

// The same call, cut into segments and in one piece: near, and not the same (or nothing was cut).
inline void expect_near(const RunResult& whole, const RunResult& cut) {
  for (Quantity quantity : {Quantity::kO, Quantity::kFinalState, Quantity::kDq, Quantity::kDk,
                            Quantity::kDv, Quantity::kDState0}) {
    EXPECT_LE(distance(whole.values.at(quantity), cut.values.at(quantity)), 2e-2)
        << name_of(quantity);
  }
  EXPECT_NE(whole.values.at(Quantity::kO).data, cut.values.at(Quantity::kO).data);
}

class HopperFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    if (!have_gpu(&reason)) GTEST_SKIP() << reason;
    for (const TestBackend& backend : cuda_backends()) {
      if (backend.io == DType::kBF16) backend_ = backend;
    }
    const std::string path = path_of(served("served"), DType::kBF16);
    if (path != kFused) GTEST_SKIP() << path;
  }
  // That the kernels under test serve a case: both directions where it keeps the states.
  void expect_served(const Case& c) {
    EXPECT_EQ(path_of(c, DType::kBF16), kFused) << c.name;
    if (c.h_kv) {
      EXPECT_EQ(backward_path_of(c, DType::kBF16), kBackward) << c.name;
    }
  }
  // That a case is served here, agrees with the recurrence in double, and gives the same bits
  // twice.
  void expect_right(const Case& c, const CaseData& data) {
    expect_served(c);
    const Outputs expected = oracle(c, data);
    const RunResult result = run_chunk(backend_, c, data, {.keep_bits = true});
    ASSERT_EQ(result.unsupported, "");
    for (const std::string& fault : result.faults)
      ADD_FAILURE() << fault;
    expect_all_close(backend_, c, data, expected, result.values, nullptr);
    const RunResult again = run_chunk(backend_, c, data, {.keep_bits = true});
    for (const auto& [quantity, bits] : result.bits)
      EXPECT_EQ(bits, again.bits.at(quantity)) << name_of(quantity) << ": two runs differ";
  }
  TestBackend backend_;
};

}  // namespace kda::test
