// What the tests of the Hopper kernels share: a case that these kernels serve, and a fixture that
// skips where they do not run.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "cuda/cuda_backends.h"
#include "kda/cuda.h"
#include "support/run.h"

namespace kda::test {

inline constexpr const char* kFused = "fused kernel for Hopper (sm_90a)";

// A case that the fused forward serves, to be varied.
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
          .narrow_gate = true};
}

// The path of a case's forward call; tensors lie where nothing reads them.
inline std::string path_of(const Case& c, DType io) {
  alignas(16) static char nowhere[16];
  const auto view = [](DType dtype, std::initializer_list<std::int64_t> shape) {
    TensorView v = view_of(nowhere, dtype, shape);
    v.space = MemorySpace::kCuda;
    return v;
  };
  const CaseDTypes dtype = dtypes_of(c, io);
  ChunkForwardParams p;
  p.in.q = p.in.k = view(dtype.io, {c.B, c.T, c.H, c.K});
  p.in.v = view(dtype.io, {c.B, c.T, c.HV, c.V});
  (c.raw_gate() ? p.in.g_raw : p.in.g_ln) = view(dtype.gate_beta, {c.B, c.T, c.HV, c.K});
  if (c.has_a_log()) p.in.gate.a_log = view(dtype.params, {c.HV});
  if (c.safe_gate()) p.in.gate.lower_bound_ln = -5.0;
  (c.beta_is_logit() ? p.in.beta_logit : p.in.beta) = view(dtype.gate_beta, {c.B, c.T, c.HV});
  p.in.qk_l2norm = c.qk_l2norm;
  p.o = view(dtype.io, {c.B, c.T, c.HV, c.V});
  return cuda::chunk_forward_path(p);
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
  TestBackend backend_;
};

}  // namespace kda::test
