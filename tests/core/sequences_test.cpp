// cu_seqlens: what is accepted, what is refused, and where the sequences lie.
#include "core/problem.h"
#include "support/legal_call.h"

namespace kda::test {
namespace {

class Sequences : public ::testing::Test, public LegalCall {
 protected:
  // A packed call of `tokens` tokens.
  ChunkForwardParams packed(std::int64_t tokens, const ConstTensorView& cu) {
    ChunkForwardParams p;
    p.in.q = tensor({1, tokens, H, K});
    p.in.k = tensor({1, tokens, H, K});
    p.in.v = tensor({1, tokens, HV, V});
    p.in.g_ln = tensor({1, tokens, HV, K});
    p.in.beta = tensor({1, tokens, HV});
    p.o = tensor({1, tokens, HV, V});
    p.in.cu_seqlens = cu;
    return p;
  }
  void refuse(const std::vector<std::int64_t>& cu, const std::vector<std::string>& parts) {
    const auto n = static_cast<std::int64_t>(cu.size());
    expect_refused([&] { core::check_chunk_forward(packed(T, view_of(cu.data(), {n}))); }, parts);
    const std::vector<std::int32_t> narrow(cu.begin(), cu.end());
    expect_refused([&] { core::check_chunk_forward(packed(T, view_of(narrow.data(), {n}))); },
                   parts);
  }
};

TEST_F(Sequences, Boundaries_AreChecked) {
  refuse({0, T - 1}, {"cu_seqlens[1]:", "T=12", "11"});
  refuse({0, T + 1}, {"cu_seqlens[1]:", "T=12", "13"});
  refuse({1, T}, {"cu_seqlens[0]:", "expected 0", "given 1"});
  refuse({0, 9, 5, T}, {"cu_seqlens[2]:", ">= 9", "given 5"});
  refuse({0, -1, T}, {"cu_seqlens[1]:", ">= 0", "given -1"});
  refuse({0, 4, 8}, {"cu_seqlens[2]:", "T=12", "given 8"});
}

TEST_F(Sequences, Tensor_IsChecked) {
  const std::int64_t cu[] = {0, T};
  ChunkForwardParams p = forward();  // B = 2
  p.in.cu_seqlens = view_of(cu, {2});
  expect_refused([&] { core::check_chunk_forward(p); }, {"cu_seqlens", "B=1", "B=2"});
  expect_refused(
      [&] {
        core::check_chunk_forward(packed(T, view_of(cu, {1, 2})));
      },
      {"cu_seqlens:", "[N+1]", "[1,2]"});
  expect_refused([&] { core::check_chunk_forward(packed(T, view_of(cu, {0}))); },
                 {"cu_seqlens:", "leading 0", "[0]"});
  const float wrong[] = {0.0F, 12.0F};
  expect_refused([&] { core::check_chunk_forward(packed(T, view_of(wrong, {2}))); },
                 {"cu_seqlens:", "dtype i32 or i64", "f32"});
  ConstTensorView elsewhere = view_of(cu, {2});
  elsewhere.space = MemorySpace::kCuda;
  expect_refused([&] { core::check_chunk_forward(packed(T, elsewhere)); },
                 {"cu_seqlens:", "host memory", "cuda"});
}

TEST_F(Sequences, StateCount_FollowsCuSeqlens) {
  const std::int64_t cu[] = {0, 5, T};
  ChunkForwardParams p = packed(T, view_of(cu, {3}));
  p.in.initial_state_kv = tensor({1, HV, K, V});
  expect_refused([&] { core::check_chunk_forward(p); }, {"initial_state_kv:", "N=2", "[1,4,6,5]"});
}

TEST_F(Sequences, EmptyOnes_AreLegal) {
  const std::int64_t cu[] = {0, 0, 5, 5, T, T};
  const core::Problem p = core::check_chunk_forward(packed(T, view_of(cu, {6})));
  EXPECT_EQ(p.dims.N, 5);
  EXPECT_EQ(p.sequence(0).length, 0);
  EXPECT_EQ(p.sequence(1).begin, 0);
  EXPECT_EQ(p.sequence(1).length, 5);
  EXPECT_EQ(p.sequence(3).begin, 5);
  EXPECT_EQ(p.sequence(3).length, 7);
  EXPECT_EQ(p.sequence(4).length, 0);
  const std::int64_t none[] = {0, 0, 0};
  EXPECT_EQ(core::check_chunk_forward(packed(0, view_of(none, {3}))).dims.N, 2);
  EXPECT_EQ(core::check_chunk_forward(packed(0, view_of(none, {1}))).dims.N, 0);
}

TEST_F(Sequences, Strides_AreRespected) {
  const std::int64_t spread[] = {0, -7, 5, -7, 12};
  ConstTensorView cu = view_of(spread, {3});
  cu.stride[0] = 2;
  const core::Problem p = core::check_chunk_forward(packed(T, cu));
  EXPECT_EQ(p.offsets, (std::vector<std::int64_t>{0, 5, 12}));
}

TEST_F(Sequences, StateBlocks_AreCountedPerSequence) {
  const std::int64_t cu[] = {0, 0, 64, 129, 130};
  OperatorInputs in = packed(130, view_of(cu, {5})).in;
  EXPECT_EQ(num_state_blocks(in), 0 + 1 + 2 + 1);
  const core::Problem p = core::check_chunk_forward(packed(130, view_of(cu, {5})));
  EXPECT_EQ(p.sequence(2).first_block, 1);
  EXPECT_EQ(p.sequence(3).first_block, 3);
  in.cu_seqlens = {};
  EXPECT_EQ(num_state_blocks(in), 3);
  in.q.shape[0] = 4;
  EXPECT_EQ(num_state_blocks(in), 12);
}

TEST_F(Sequences, DeviceOffsets_GiveTheBound) {
  const std::int64_t cu[] = {0, 5, T};
  ChunkForwardParams p = packed(T, view_of(cu, {3}));
  for (ConstTensorView* view :
       {&p.in.q, &p.in.k, &p.in.v, &p.in.g_ln, &p.in.beta, &p.in.cu_seqlens}) {
    view->space = MemorySpace::kCuda;
  }
  p.o.space = MemorySpace::kCuda;
  const core::Problem problem = core::check_chunk_forward(p);
  EXPECT_TRUE(problem.offsets_on_device);
  EXPECT_EQ(problem.num_state_blocks, T / 64 + 2);
}

TEST_F(Sequences, EmptyDenseCalls_AreLegal) {
  ChunkForwardParams p;
  p.in.q = tensor({0, T, H, K});
  p.in.k = tensor({0, T, H, K});
  p.in.v = tensor({0, T, HV, V});
  p.in.g_ln = tensor({0, T, HV, K});
  p.in.beta = tensor({0, T, HV});
  p.o = tensor({0, T, HV, V});
  p.in.q.data = nullptr;  // nothing to read
  EXPECT_EQ(core::check_chunk_forward(p).num_state_blocks, 0);
}

}  // namespace
}  // namespace kda::test
