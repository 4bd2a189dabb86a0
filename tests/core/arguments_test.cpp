// Every argument error names the argument, what was expected and what was given.
#include "core/problem.h"
#include "support/legal_call.h"

namespace kda::test {
namespace {

class Arguments : public ::testing::Test, public LegalCall {
 protected:
  void refuse(const ChunkForwardParams& p, const std::vector<std::string>& parts) {
    expect_refused([&] { core::check_chunk_forward(p); }, parts);
  }
  void refuse(const ChunkBackwardParams& p, const std::vector<std::string>& parts) {
    expect_refused([&] { core::check_chunk_backward(p); }, parts);
  }
  void refuse(const RecurrentForwardParams& p, const std::vector<std::string>& parts) {
    expect_refused([&] { core::check_recurrent_forward(p); }, parts);
  }
};

TEST_F(Arguments, LegalCalls_AreAccepted) {
  EXPECT_NO_THROW(core::check_chunk_forward(forward()));
  EXPECT_NO_THROW(core::check_chunk_backward(backward()));
  EXPECT_NO_THROW(core::check_recurrent_forward(recurrent()));
  const core::Problem p = core::check_chunk_forward(forward());
  EXPECT_EQ(p.dims.G(), 2);
  EXPECT_EQ(p.dims.N, B);
  EXPECT_DOUBLE_EQ(p.scale, 1.0 / std::sqrt(6.0));
  EXPECT_EQ(p.num_state_blocks, B);
}

TEST_F(Arguments, Rank_IsNamed) {
  ChunkForwardParams p = forward();
  p.in.q = tensor({T, H, K});
  refuse(p, {"q:", "[B,T,H,K]", "rank 4", "[12,2,6]"});
  p = forward();
  p.in.q = {};
  refuse(p, {"q:", "required", "[B,T,H,K]", "given none"});
  p = forward();
  p.in.g_ln = tensor({B, T, HV});  // one decay per head: a docstring elsewhere says so
  refuse(p, {"g_ln:", "[B=2,T=12,HV=4,K=6]", "[2,12,4]"});
  p = forward();
  p.in.beta = tensor({B, T, HV, 1});
  refuse(p, {"beta:", "[B=2,T=12,HV=4]", "[2,12,4,1]"});
}

TEST_F(Arguments, Shape_IsNamedForEveryTensor) {
  ChunkForwardParams p = forward();
  p.in.k = tensor({B, T, H, 5});
  refuse(p, {"k:", "[B=2,T=12,H=2,K=6]", "[2,12,2,5]"});
  p = forward();
  p.in.v = tensor({B, 11, HV, V});
  refuse(p, {"v:", "[B=2,T=12,HV=4,V=5]", "[2,11,4,5]"});
  p = forward();
  p.in.g_ln = tensor({B, T, H, K});  // H where HV is meant
  refuse(p, {"g_ln:", "HV=4", "[2,12,2,6]"});
  p = forward();
  p.in.beta = tensor({B, T, H});
  refuse(p, {"beta:", "HV=4", "[2,12,2]"});
  p = forward();
  p.o = tensor({B, T, H, V});
  refuse(p, {"o:", "[B=2,T=12,HV=4,V=5]", "[2,12,2,5]"});
  p = forward();
  p.o = {};
  refuse(p, {"o:", "required"});
  p = forward();
  p.in.initial_state_kv = tensor({B, HV, V, K});  // [V,K] memory without transposed()
  refuse(p, {"initial_state_kv:", "[N=2,HV=4,K=6,V=5]", "[2,4,5,6]"});
  p = forward();
  p.final_state_kv = tensor({1, HV, K, V});
  refuse(p, {"final_state_kv:", "N=2", "[1,4,6,5]"});
  p = forward();
  p.h_kv = tensor({3, HV, K, V});
  refuse(p, {"h_kv:", "num_state_blocks=2", "[3,4,6,5]"});
}

TEST_F(Arguments, Heads_MustGroup) {
  ChunkForwardParams p = forward();
  p.in.v = tensor({B, T, 3, V});  // not a multiple of H
  refuse(p, {"v:", "multiple of H=2", "HV=3"});
  p.in.v = tensor({B, T, 1, V});  // fewer than H
  refuse(p, {"v:", "multiple of H=2", "HV=1"});
  p = forward();
  p.in.q = tensor({B, T, 0, K});
  refuse(p, {"q:", "at least one head", "[2,12,0,6]"});
}

TEST_F(Arguments, HeadDims_HaveLimits) {
  ChunkForwardParams p = forward();
  p.in.q = tensor({1, 1, 1, 512});
  p.in.k = tensor({1, 1, 1, 512});
  p.in.v = tensor({1, 1, 1, V});
  refuse(p, {"K:", "1 to 256", "512"});
  p = forward();
  p.in.v = tensor({B, T, HV, 257});
  refuse(p, {"V:", "1 to 256", "257"});
  p = forward();
  p.in.q = tensor({B, T, H, 0});
  p.in.k = tensor({B, T, H, 0});
  refuse(p, {"K:", "1 to 256", "given 0"});
}

TEST_F(Arguments, DTypes_AreNamed) {
  ChunkForwardParams p = forward();
  p.in.q = tensor(DType::kI32, {B, T, H, K});
  refuse(p, {"q:", "dtype f64 or f32 or bf16 or f16", "i32"});
  p = forward();
  p.in.k = tensor(DType::kBF16, {B, T, H, K});
  refuse(p, {"k:", "dtype f32", "bf16"});
  p = forward();
  p.in.g_ln = tensor(DType::kBF16, {B, T, HV, K});  // narrower than an f32 call
  refuse(p, {"g_ln:", "dtype f32", "bf16"});
  p = forward();
  p.in.initial_state_kv = tensor(DType::kBF16, {B, HV, K, V});
  refuse(p, {"initial_state_kv:", "dtype f32", "bf16"});
  p = forward();
  p.o = tensor(DType::kBF16, {B, T, HV, V});
  refuse(p, {"o:", "dtype f32", "bf16"});
}

TEST_F(Arguments, NarrowCalls_AcceptTheirDTypeAndF32) {
  ChunkForwardParams p = forward();
  p.in.q = tensor(DType::kBF16, {B, T, H, K});
  p.in.k = tensor(DType::kBF16, {B, T, H, K});
  p.in.v = tensor(DType::kBF16, {B, T, HV, V});
  p.o = tensor(DType::kBF16, {B, T, HV, V});
  EXPECT_NO_THROW(core::check_chunk_forward(p));  // g_ln and beta in f32
  p.in.g_ln = tensor(DType::kBF16, {B, T, HV, K});
  p.in.beta = tensor(DType::kBF16, {B, T, HV});
  EXPECT_NO_THROW(core::check_chunk_forward(p));
  p.in.beta = tensor(DType::kF16, {B, T, HV});
  refuse(p, {"beta:", "dtype f32 or bf16", "f16"});
}

TEST_F(Arguments, DoubleCalls_AreDoubleThroughout) {
  ChunkForwardParams p = forward();
  p.in.q = tensor(DType::kF64, {B, T, H, K});
  p.in.k = tensor(DType::kF64, {B, T, H, K});
  p.in.v = tensor(DType::kF64, {B, T, HV, V});
  p.o = tensor(DType::kF64, {B, T, HV, V});
  refuse(p, {"g_ln:", "dtype f64", "f32"});
}

TEST_F(Arguments, Space_MustBeOne) {
  ChunkForwardParams p = forward();
  p.in.v.space = MemorySpace::kCuda;
  refuse(p, {"v:", "host memory like q", "given cuda"});
  p = forward();
  p.in.initial_state_kv = tensor({B, HV, K, V});
  p.in.initial_state_kv.space = MemorySpace::kCuda;
  refuse(p, {"initial_state_kv:", "host memory like q", "given cuda"});
  p = forward();
  p.o.space = MemorySpace::kCuda;
  refuse(p, {"o:", "host memory like q", "given cuda"});
}

TEST_F(Arguments, NullData_IsRefusedWhereThereIsSomethingToRead) {
  ChunkForwardParams p = forward();
  p.in.q.data = nullptr;
  refuse(p, {"q:", "null data", "[2,12,2,6]"});
  p = forward();
  p.in.q = tensor({B, T, -2, K});
  refuse(p, {"q:", "negative extent", "[2,12,-2,6]"});
}

TEST_F(Arguments, Outputs_MustNotOverlapThemselves) {
  ChunkForwardParams p = forward();
  p.o.stride[2] = 0;
  refuse(p, {"o:", "overlap", "stride 0", "dimension 2"});
  p = forward();
  p.o.stride[1] = V;  // rows of neighbouring heads on top of each other
  refuse(p, {"o:", "overlap"});
  p = forward();
  p.o.stride[3] = -1;
  refuse(p, {"o:", "overlap"});
  ChunkBackwardParams b = backward();
  b.dv = tensor({B, T, HV, V});
  b.dv.stride[0] = 0;
  refuse(b, {"dv:", "overlap"});
}

TEST_F(Arguments, Inputs_MayBroadcastAndHaveAnyStride) {
  ChunkForwardParams p = forward();
  p.in.beta.stride = {0, 0, 0};
  p.in.g_ln.stride[3] = 2;
  p.in.v = p.in.v.transposed(1, 1);
  EXPECT_NO_THROW(core::check_chunk_forward(p));
}

TEST_F(Arguments, DecayAndBeta_ExactlyOneOfTwo) {
  ChunkForwardParams p = forward();
  p.in.g_raw = tensor({B, T, HV, K});
  refuse(p, {"g_ln, g_raw", "exactly one", "both"});
  p.in.g_ln = p.in.g_raw = {};
  refuse(p, {"g_ln, g_raw", "exactly one", "none"});
  p = forward();
  p.in.beta_logit = tensor({B, T, HV});
  refuse(p, {"beta, beta_logit", "exactly one", "both"});
  p.in.beta = p.in.beta_logit = {};
  refuse(p, {"beta, beta_logit", "exactly one", "none"});
}

TEST_F(Arguments, BetaMax_BelongsToLogits) {
  ChunkForwardParams p = forward();
  p.in.beta_max = 2.0;
  refuse(p, {"beta_max", "beta_logit", "beta was given"});
  p.in.beta_logit = p.in.beta;
  p.in.beta = {};
  EXPECT_NO_THROW(core::check_chunk_forward(p));
  for (double bad : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    p.in.beta_max = bad;
    refuse(p, {"beta_max", "finite value > 0"});
  }
}

TEST_F(Arguments, Gate_ParametersAreChecked) {
  ChunkForwardParams p = forward();
  p.in.g_raw = p.in.g_ln;
  p.in.g_ln = {};
  refuse(p, {"a_log:", "required", "standard gate"});
  p.in.gate.a_log = tensor({H});
  refuse(p, {"a_log:", "[HV=4]", "[2]"});
  p.in.gate.a_log = tensor({HV});
  EXPECT_NO_THROW(core::check_chunk_forward(p));
  p.in.gate.dt_bias = tensor({HV});  // one per head instead of one per channel
  refuse(p, {"dt_bias:", "[HV=4,K=6]", "[4]"});
  p.in.gate.dt_bias = tensor({HV, K});
  p.in.gate.dt_bias.stride[0] = 2 * K;
  refuse(p, {"dt_bias:", "contiguous"});
  p.in.gate.dt_bias = tensor(DType::kBF16, {HV, K});
  refuse(p, {"dt_bias:", "dtype f32", "bf16"});
  p.in.gate.dt_bias = {};
  p.in.gate.a_log = tensor(DType::kBF16, {HV});
  refuse(p, {"a_log:", "dtype f32", "bf16"});
  p.in.gate.a_log = {};
  p.in.gate.lower_bound_ln = -5.0;
  EXPECT_NO_THROW(core::check_chunk_forward(p));  // exp(A) = 1
  for (double bad : {0.0, 1.0, -HUGE_VAL, std::nan("")}) {
    p.in.gate.lower_bound_ln = bad;
    refuse(p, {"lower_bound_ln:", "finite value < 0"});
  }
}

TEST_F(Arguments, Gate_ParametersNeedARawGate) {
  ChunkForwardParams p = forward();
  p.in.gate.a_log = tensor({HV});
  refuse(p, {"gate:", "g_raw", "g_ln was given"});
  p = forward();
  p.in.gate.lower_bound_ln = -5.0;
  refuse(p, {"gate:", "g_raw", "g_ln was given"});
  ChunkBackwardParams b = backward();
  b.da_log = tensor({HV});
  refuse(b, {"da_log", "g_raw"});
  b = backward();
  b.d_dt_bias = tensor({HV, K});
  refuse(b, {"d_dt_bias", "g_raw"});
}

TEST_F(Arguments, Scale_MustBeFinite) {
  ChunkForwardParams p = forward();
  p.in.scale = std::nan("");
  refuse(p, {"scale:", "finite"});
  p.in.scale = -2.0;
  EXPECT_EQ(core::check_chunk_forward(p).scale, -2.0);
}

TEST_F(Arguments, Chunk_IsOneOfFour) {
  for (int chunk : {16, 32, 64, 128}) {
    ChunkForwardParams p = forward();
    p.chunk = chunk;
    EXPECT_NO_THROW(core::check_chunk_forward(p));
  }
  for (int chunk : {-1, 0, 8, 48, 256}) {
    ChunkForwardParams p = forward();
    p.chunk = chunk;
    refuse(p, {"chunk:", "16", "128", std::to_string(chunk)});
    ChunkBackwardParams b = backward();
    b.chunk = chunk;
    refuse(b, {"chunk:", std::to_string(chunk)});
  }
}

TEST_F(Arguments, Backward_OutputsAreChecked) {
  ChunkBackwardParams p = backward();
  p.dq = tensor({B, T, HV, K});  // not folded
  refuse(p, {"dq:", "[B=2,T=12,H=2,K=6]", "[2,12,4,6]"});
  p = backward();
  p.dk = tensor({B, T, HV, K});
  refuse(p, {"dk:", "H=2", "[2,12,4,6]"});
  p = backward();
  p.dbeta = tensor({B, T, HV, 1});
  refuse(p, {"dbeta:", "[B=2,T=12,HV=4]", "[2,12,4,1]"});
  p = backward();
  p.dg = tensor(DType::kBF16, {B, T, HV, K});
  refuse(p, {"dg:", "dtype f32", "bf16"});
  p = backward();
  p.d_o = tensor({B, T, H, V});
  refuse(p, {"d_o:", "HV=4", "[2,12,2,5]"});
  p = backward();
  p.d_final_state_kv = tensor({B, HV, V, K});
  refuse(p, {"d_final_state_kv:", "[N=2,HV=4,K=6,V=5]", "[2,4,5,6]"});
  p = backward();
  p.d_initial_state_kv = tensor({1, HV, K, V});
  refuse(p, {"d_initial_state_kv:", "N=2", "[1,4,6,5]"});
  p = backward();
  p.in.g_raw = p.in.g_ln;
  p.in.g_ln = {};
  p.in.gate.lower_bound_ln = -5.0;
  p.da_log = tensor({HV});
  refuse(p, {"da_log:", "a_log is absent"});
  p.da_log = {};
  p.d_dt_bias = tensor({K, HV});
  refuse(p, {"d_dt_bias:", "[HV=4,K=6]", "[6,4]"});
}

TEST_F(Arguments, GateOperators_AreChecked) {
  GateForwardParams f;
  f.g_raw = tensor({B, T, HV, K});
  f.gate.a_log = tensor({HV});
  expect_refused([&] { core::check_gate_forward(f); }, {"g_ln:", "required"});
  f.g_ln = tensor(DType::kBF16, {B, T, HV, K});
  expect_refused([&] { core::check_gate_forward(f); }, {"g_ln:", "dtype f32", "bf16"});
  f.g_ln = tensor({B, T, HV, K});
  EXPECT_NO_THROW(core::check_gate_forward(f));
  f.g_raw = tensor({B, T, K});
  expect_refused([&] { core::check_gate_forward(f); }, {"g_raw:", "[B,T,HV,K]", "[2,12,6]"});

  GateBackwardParams b;
  b.g_raw = tensor({B, T, HV, K});
  b.gate.lower_bound_ln = -5.0;
  expect_refused([&] { core::check_gate_backward(b); }, {"dg_ln:", "required"});
  b.dg_ln = tensor({B, T, HV, K});
  EXPECT_NO_THROW(core::check_gate_backward(b));
  b.da_log = tensor({HV});
  expect_refused([&] { core::check_gate_backward(b); }, {"da_log:", "a_log is absent"});

  GateCumsumForwardParams c;
  c.gcum_log2 = tensor({B, T, HV, K});
  expect_refused([&] { core::check_gate_cumsum_forward(c); }, {"g_ln, g_raw", "none"});
  c.g_ln = tensor({B, T, HV, K});
  EXPECT_NO_THROW(core::check_gate_cumsum_forward(c));
  c.chunk = 0;
  expect_refused([&] { core::check_gate_cumsum_forward(c); }, {"chunk:", ">= 1", "0"});
  c.chunk = 64;
  c.gcum_log2 = {};
  expect_refused([&] { core::check_gate_cumsum_forward(c); }, {"gcum_log2:", "required"});
}

TEST_F(Arguments, Norm_IsChecked) {
  L2NormForwardParams f;
  f.x = tensor({B, T, H, K});
  expect_refused([&] { core::check_l2norm_forward(f); }, {"y:", "required"});
  f.y = tensor({B, T, H, K});
  EXPECT_NO_THROW(core::check_l2norm_forward(f));
  f.rstd = tensor({B, T, HV});
  expect_refused([&] { core::check_l2norm_forward(f); }, {"rstd:", "[B=2,T=12,H=2]", "[2,12,4]"});
  f.rstd = {};
  for (double bad : {0.0, -1e-6, std::nan("")}) {
    f.eps = bad;
    expect_refused([&] { core::check_l2norm_forward(f); }, {"eps:", "> 0"});
  }
  L2NormBackwardParams b;
  b.x = tensor({B, T, H, K});
  b.dy = tensor({B, T, HV, K});
  expect_refused([&] { core::check_l2norm_backward(b); }, {"dy:", "H=2", "[2,12,4,6]"});
  b.dy = tensor({B, T, H, K});
  expect_refused([&] { core::check_l2norm_backward(b); }, {"dx:", "required"});
}

TEST_F(Arguments, NothingIsWrittenBeforeAnError) {
  ChunkForwardParams p = forward();
  std::vector<float> out(B * T * HV * V, 7.0F);
  p.o = view_of(out.data(), {B, T, HV, V});
  p.in.initial_state_kv = tensor({B, HV, V, K});
  expect_refused([&] { chunk_forward(p); }, {"initial_state_kv:"});
  EXPECT_EQ(out, std::vector<float>(B * T * HV * V, 7.0F));
}

// 262,145 tokens x 64 heads x 128 channels is past 2^31 elements: extents and offsets are 64 bit.
TEST_F(Arguments, Extents_Beyond32Bits) {
  ChunkForwardParams p;
  p.in.q = tensor({1, 262145, 64, 128});
  p.in.k = p.in.q;
  p.in.v = p.in.q;
  p.in.g_ln = p.in.q;
  p.in.beta = tensor({1, 262145, 64});
  p.o = tensor({1, 262145, 64, 128});
  EXPECT_EQ(p.in.q.numel(), 2147491840);
  EXPECT_EQ(p.in.q.stride[0], 2147491840);
  EXPECT_EQ(core::check_chunk_forward(p).num_state_blocks, 4097);
}

}  // namespace
}  // namespace kda::test
