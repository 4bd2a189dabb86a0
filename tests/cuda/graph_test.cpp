// What host test kits cannot see: sequence boundaries that stay on the device, and CUDA graphs.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "cuda/cuda_backends.h"
#include "kda/error.h"
#include "support/run.h"

namespace kda::test {
namespace {

class CudaGraph : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    std::string reason;
    if (!have_gpu(&reason)) GTEST_SKIP() << reason;
    backend_ = cuda_backends()[static_cast<std::size_t>(GetParam())];
  }
  TestBackend backend_;
};

// Forward and backward of a packed case whose boundaries are read on the device, captured into a
// graph and replayed into poisoned outputs: the same bits as the plain call with host boundaries.
TEST_P(CudaGraph, DeviceBoundariesInAGraph_SameBitsAsHostBoundaries) {
  const Case c{.name = "graph",
               .T = 300,
               .H = 2,
               .HV = 4,
               .K = 64,
               .V = 64,
               .cu = {0, 0, 1, 65, 130, 130, 300},
               .gate = GateInput::kSafe,
               .betas = Betas::kLogit,
               .qk_l2norm = true};
  const CaseData data = make_data(c, backend_.io);
  const RunResult plain = run_chunk(backend_, c, data, {.keep_bits = true});
  ASSERT_EQ(plain.unsupported, "");

  const DeviceInputs inputs(backend_, c, data);
  DeviceTensor cu(*backend_.memory, DType::kI32, {static_cast<std::int64_t>(c.cu.size())},
                  Layout::kContiguous);
  cu.upload(c.cu);
  ChunkForwardParams forward;
  forward.in = inputs.operator_inputs(c);
  forward.in.cu_seqlens = cu.view();
  DeviceTensor o(*backend_.memory, backend_.io, {1, c.T, c.HV, c.V}, Layout::kContiguous);
  DeviceTensor final_state(*backend_.memory, DType::kF32, {c.N(), c.HV, c.K, c.V},
                           Layout::kContiguous);
  forward.o = o.view();
  forward.final_state_kv = final_state.view();
  ChunkBackwardParams backward;
  backward.in = forward.in;
  backward.d_o = inputs.d_o.view();
  backward.d_final_state_kv = inputs.d_final_state.view();
  const CaseDTypes dtype = dtypes_of(c, backend_.io);
  DeviceTensor dq(*backend_.memory, dtype.gradient, {1, c.T, c.H, c.K}, Layout::kContiguous);
  DeviceTensor dv(*backend_.memory, dtype.gradient, {1, c.T, c.HV, c.V}, Layout::kContiguous);
  DeviceTensor dg(*backend_.memory, dtype.gradient_gate_beta, {1, c.T, c.HV, c.K},
                  Layout::kContiguous);
  DeviceTensor d_bias(*backend_.memory, DType::kF32, {c.HV, c.K}, Layout::kContiguous);
  backward.dq = dq.view();
  backward.dv = dv.view();
  backward.dg = dg.view();
  backward.d_dt_bias = d_bias.view();

  Context context;
  context.backend = Backend::kCuda;
  context.stream = backend_.memory->stream();
  const GuardedWorkspace workspace(*backend_.memory,
                                   std::max(chunk_forward_workspace_bytes(forward, context),
                                            chunk_backward_workspace_bytes(backward, context)));
  context.workspace = workspace.get();
  auto* stream = static_cast<cudaStream_t>(context.stream);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  chunk_forward(forward, context);
  chunk_backward(backward, context);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  for (int replay = 0; replay < 3; ++replay) {
    for (DeviceTensor* tensor : {&o, &final_state, &dq, &dv, &dg, &d_bias})
      tensor->poison();
    ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(o.bits(), plain.bits.at(Quantity::kO));
    EXPECT_EQ(final_state.bits(), plain.bits.at(Quantity::kFinalState));
    EXPECT_EQ(dq.bits(), plain.bits.at(Quantity::kDq));
    EXPECT_EQ(dv.bits(), plain.bits.at(Quantity::kDv));
    EXPECT_EQ(dg.bits(), plain.bits.at(Quantity::kDg));
    EXPECT_EQ(d_bias.bits(), plain.bits.at(Quantity::kDDtBias));
  }
  EXPECT_EQ(workspace.damage(), "");
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

// Twenty runs, bit by bit. K = 64 with more chunks of heads than a GPU takes at a time.
TEST_P(CudaGraph, TwentyRuns_SameBits) {
  for (const std::int64_t d : {128, 64}) {
    const Case c{.name = "repeat_d" + std::to_string(d),
                 .B = 2,
                 .T = d == 64 ? 1100 : 400,
                 .H = 2,
                 .HV = d == 64 ? 16 : 4,
                 .K = d,
                 .V = d,
                 .gate = GateInput::kSafe,
                 .betas = Betas::kLogit,
                 .qk_l2norm = true,
                 .h_kv = true,
                 .narrow_gate = true,
                 .narrow_states = backend_.io == DType::kBF16};  // then Hopper has its own kernels
    const CaseData data = make_data(c, backend_.io);
    const RunResult first = run_chunk(backend_, c, data, {.keep_bits = true});
    for (int run = 1; run < 20; ++run) {
      const RunResult again = run_chunk(backend_, c, data, {.keep_bits = true});
      for (const auto& [quantity, bits] : first.bits) {
        ASSERT_EQ(bits, again.bits.at(quantity))
            << c.name << ", " << name_of(quantity) << ", run " << run;
      }
    }
  }
}

TEST_P(CudaGraph, MissingWorkspace_IsAnErrorThatSaysHowMuch) {
  const Case c{.name = "workspace", .T = 64, .K = 64, .V = 64};
  const CaseData data = make_data(c, backend_.io);
  const DeviceInputs inputs(backend_, c, data);
  ChunkForwardParams forward;
  forward.in = inputs.operator_inputs(c);
  DeviceTensor o(*backend_.memory, backend_.io, {1, c.T, c.HV, c.V}, Layout::kContiguous);
  forward.o = o.view();
  Context context;
  context.backend = Backend::kCuda;
  try {
    chunk_forward(forward, context);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    const std::string bytes = std::to_string(chunk_forward_workspace_bytes(forward, context));
    EXPECT_NE(std::string(error.what()).find(bytes), std::string::npos) << error.what();
  }
}

std::string dtype_name(const ::testing::TestParamInfo<int>& test) {
  constexpr const char* kTypes[] = {"f32", "bf16", "f16"};
  return kTypes[test.param];
}
INSTANTIATE_TEST_SUITE_P(All, CudaGraph, ::testing::Values(0, 1, 2), dtype_name);

}  // namespace
}  // namespace kda::test
