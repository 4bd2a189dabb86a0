// Two blocks that share the prep of a head: calls of every shape class whose heads are few enough
// for it, whole and cut into segments, against the recurrence in double and from run to run.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "cuda/hopper_cases.h"

namespace kda::test {
namespace {

// A case by name, tokens and heads.
Case& add(std::vector<Case>* all, const std::string& name, std::int64_t T, std::int64_t heads) {
  Case c = served(name);
  c.T = T;
  c.H = c.HV = heads;
  all->push_back(c);
  return all->back();
}

void leave_out_states(Case* c) {
  c->initial_state = c->final_state = c->d_final_state = c->h_kv = false;
}

std::vector<Case> whole_cases() {
  std::vector<Case> all;
  // An odd and an even number of 16-token chunks, so that the blocks change roles between heads.
  for (std::int64_t T : {1, 16, 17, 33, 257, 1000})
    add(&all, "tokens_" + std::to_string(T), T, 3);
  add(&all, "several_rounds", 100, 64).B = 4;
  add(&all, "grouped", 130, 2).HV = 6;
  Case& packed = add(&all, "packed", 150, 5);
  packed.HV = 10;
  packed.cu = {0, 1, 1, 64, 81, 81, 82, 147, 150};
  // 0, 0, 1, 1, 2, 2, 0, 3 chunks: more heads than pairs of blocks, so that items follow items.
  Case& few = add(&all, "packed_few_chunks", 150, 20);
  few.cu = {0, 0, 0, 1, 17, 34, 66, 66, 113, 113, 150};
  leave_out_states(&add(&all, "without_states", 200, 2));
  add(&all, "transposed_states", 200, 2).state_layout = Layout::kTransposed;
  Case& slices = add(&all, "slices", 130, 2);
  slices.B = 2;
  slices.in_layout = slices.out_layout = Layout::kFusedSlice;
  add(&all, "standard_gate", 300, 2).gate = GateInput::kStandard;
  return all;
}

// Beside those of HopperSegmentCase.
std::vector<Case> cut_cases() {
  std::vector<Case> all;
  // The last segment ends with 2 and 3 chunks.
  for (std::int64_t T : {4096 + 17, 4096 + 48})
    add(&all, "tokens_" + std::to_string(T), T, 1);
  add(&all, "eight_heads", 4200, 8);
  Case& batch = add(&all, "batch", 4105, 1);
  batch.B = 3;
  batch.HV = 2;
  // Sequences of 0, 1, 2 and 3 chunks around those that are cut.
  Case& few = add(&all, "packed_few_chunks", 8300, 2);
  few.cu = {0, 0, 1, 33, 4129, 4162, 4162, 8259, 8300};
  add(&all, "standard_gate", 4100, 1).gate = GateInput::kStandard;
  return all;
}

class HopperCluster : public HopperFixture, public ::testing::WithParamInterface<Case> {};

TEST_P(HopperCluster, MatchesTheDoubleRecurrence) {
  const Case& c = GetParam();
  expect_right(c, make_data(c, backend_.io));
}

INSTANTIATE_TEST_SUITE_P(All, HopperCluster, ::testing::ValuesIn(whole_cases()), CaseName());

class HopperClusterSegments : public HopperFixture, public ::testing::WithParamInterface<Case> {};

TEST_P(HopperClusterSegments, MatchTheDoubleRecurrence) {
  const Case& c = GetParam();
  expect_right(c, make_data(c, backend_.io));
}

INSTANTIATE_TEST_SUITE_P(All, HopperClusterSegments, ::testing::ValuesIn(cut_cases()), CaseName());

// A training step whose tensors and workspace are its own.
class Step {
 public:
  Step(const TestBackend& backend, const Case& c, const CaseData& data)
      : backend_(backend), case_(c), inputs_(backend, c, data) {
    const CaseDTypes dtype = dtypes_of(c, backend.io);
    const auto make = [&](DType type, std::vector<std::int64_t> shape) {
      outputs_.emplace_back(*backend.memory, type, std::move(shape), Layout::kContiguous);
      return outputs_.back().view();
    };
    forward_.in = backward_.in = inputs_.operator_inputs(c);
    forward_.o = make(dtype.io, {c.B, c.T, c.HV, c.V});
    forward_.final_state_kv = make(dtype.params, {c.N(), c.HV, c.K, c.V});
    forward_.h_kv = make(dtype.io, {num_state_blocks(forward_.in), c.HV, c.K, c.V});
    backward_.h_kv = forward_.h_kv;
    backward_.d_o = inputs_.d_o.view();
    backward_.d_final_state_kv = inputs_.d_final_state.view();
    backward_.dq = make(dtype.gradient, {c.B, c.T, c.H, c.K});
    backward_.dk = make(dtype.gradient, {c.B, c.T, c.H, c.K});
    backward_.dv = make(dtype.gradient, {c.B, c.T, c.HV, c.V});
    backward_.dg = make(dtype.gradient_gate_beta, {c.B, c.T, c.HV, c.K});
    backward_.dbeta = make(dtype.gradient_gate_beta, {c.B, c.T, c.HV});
    backward_.da_log = make(dtype.params, {c.HV});
    backward_.d_dt_bias = make(dtype.params, {c.HV, c.K});
    backward_.d_initial_state_kv = make(dtype.params, {c.N(), c.HV, c.K, c.V});
    Context context;
    context.backend = backend.backend;
    forward_scratch_ =
        GuardedWorkspace(*backend.memory, chunk_forward_workspace_bytes(forward_, context));
    backward_scratch_ =
        GuardedWorkspace(*backend.memory, chunk_backward_workspace_bytes(backward_, context));
  }

  void run(cudaStream_t stream) const {
    Context context;
    context.backend = backend_.backend;
    context.stream = stream;
    context.workspace = forward_scratch_.get();
    chunk_forward(forward_, context);
    context.workspace = backward_scratch_.get();
    chunk_backward(backward_, context);
  }
  void poison() {
    for (DeviceTensor& output : outputs_)
      output.poison();
  }
  std::vector<std::vector<unsigned char>> bits() const {
    std::vector<std::vector<unsigned char>> all;
    for (const DeviceTensor& output : outputs_)
      all.push_back(output.bits());
    return all;
  }
  std::string damage() const { return forward_scratch_.damage() + backward_scratch_.damage(); }

 private:
  TestBackend backend_;
  Case case_;
  DeviceInputs inputs_;
  std::vector<DeviceTensor> outputs_;
  ChunkForwardParams forward_;
  ChunkBackwardParams backward_;
  GuardedWorkspace forward_scratch_{*backend_.memory, 0};
  GuardedWorkspace backward_scratch_{*backend_.memory, 0};
};

class HopperClusterStep : public HopperFixture {
 protected:
  void TearDown() override { cuda::set_hopper_segments(true); }

  // Kernels of a step of T 4096 with two heads, as a graph has them.
  int kernels_of_step() {
    Case c = served("step");
    c.T = 4096;
    const Step step(backend_, c, make_data(c, backend_.io));
    auto* stream = static_cast<cudaStream_t>(backend_.memory->stream());
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    step.run(stream);
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    std::size_t count = 0;
    EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &count), cudaSuccess);
    std::vector<cudaGraphNode_t> nodes(count);
    EXPECT_EQ(cudaGraphGetNodes(graph, nodes.data(), &count), cudaSuccess);
    int kernels = 0;
    for (cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type{};
      EXPECT_EQ(cudaGraphNodeGetType(node, &type), cudaSuccess);
      kernels += type == cudaGraphNodeTypeKernel ? 1 : 0;
    }
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return kernels;
  }
};

TEST_F(HopperClusterStep, TheChainIsNoLaunch) {
  EXPECT_EQ(kernels_of_step(), 6);  // two passes each way, the local kernel, the sums
  cuda::set_hopper_segments(false);
  EXPECT_EQ(kernels_of_step(), 4);
}

// Two steps whose blocks compete for multiprocessors: each finishes, whatever part of a grid runs
// at a time, and neither sees the other.
TEST_F(HopperClusterStep, TwoStreams_SameBitsAsOne) {
  constexpr int kRounds = 20;
  std::vector<Step> steps;
  std::vector<std::vector<std::vector<unsigned char>>> expected;
  auto* stream = static_cast<cudaStream_t>(backend_.memory->stream());
  for (const std::int64_t heads : {16, 5}) {
    Case c = served("stream");
    c.T = 4170;
    c.H = c.HV = heads;
    c.seed = static_cast<std::uint64_t>(heads);
    expect_served(c);
    steps.emplace_back(backend_, c, make_data(c, backend_.io));
    steps.back().run(stream);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    expected.push_back(steps.back().bits());
    steps.back().poison();
  }
  std::array<cudaStream_t, 2> streams{};
  for (cudaStream_t& one : streams)
    ASSERT_EQ(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < steps.size(); ++i)
      steps[i].run(streams[i]);
  }
  for (cudaStream_t one : streams) {
    ASSERT_EQ(cudaStreamSynchronize(one), cudaSuccess);
    ASSERT_EQ(cudaStreamDestroy(one), cudaSuccess);
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].bits(), expected[i]) << "step " << i;
    EXPECT_EQ(steps[i].damage(), "");
  }
}

}  // namespace
}  // namespace kda::test
