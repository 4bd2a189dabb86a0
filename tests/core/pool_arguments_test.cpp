// The state pool's slots and counts: what is accepted and what is refused.
#include "core/problem.h"
#include "support/legal_call.h"

namespace kda::test {
namespace {

class PoolArguments : public ::testing::Test, public LegalCall {
 protected:
  static constexpr std::int64_t S = 30;
  RecurrentForwardParams pooled(const ConstTensorView& slots) {
    RecurrentForwardParams p = recurrent();
    p.pool.pool_kv = tensor({S, HV, K, V});
    p.pool.slots = slots;
    return p;
  }
  void refuse(const RecurrentForwardParams& p, const std::vector<std::string>& parts) {
    expect_refused([&] { core::check_recurrent_forward(p); }, parts);
  }
};

TEST_F(PoolArguments, Pool_IsChecked) {
  const std::int64_t slots[] = {3, 4};
  RecurrentForwardParams p = pooled(view_of(slots, {2}));
  EXPECT_NO_THROW(core::check_recurrent_forward(p));
  p.pool.pool_kv = tensor({S, HV, V, K});
  refuse(p, {"pool.pool_kv:", "[S=30,HV=4,K=6,V=5]", "[30,4,5,6]"});
  p.pool.pool_kv = tensor({S, K, V});
  refuse(p, {"pool.pool_kv:", "[S,HV,K,V]", "[30,6,5]"});
  p.pool.pool_kv = tensor(DType::kF16, {S, HV, K, V});
  refuse(p, {"pool.pool_kv:", "dtype f32 or bf16", "f16"});
  p.pool.pool_kv = tensor(DType::kBF16, {S, HV, K, V});
  EXPECT_NO_THROW(core::check_recurrent_forward(p));
  p.pool.pool_kv.stride[0] = 0;
  refuse(p, {"pool.pool_kv:", "overlap"});
  p.pool.pool_kv = {};
  refuse(p, {"pool.slots", "pool.pool_kv"});
}

TEST_F(PoolArguments, Pool_ReplacesStates) {
  const std::int64_t slots[] = {3, 4};
  RecurrentForwardParams p = pooled(view_of(slots, {2}));
  p.in.initial_state_kv = tensor({B, HV, K, V});
  refuse(p, {"pool:", "initial_state_kv"});
  p = pooled(view_of(slots, {2}));
  p.final_state_kv = tensor({B, HV, K, V});
  refuse(p, {"pool:", "final_state_kv"});
}

TEST_F(PoolArguments, Slots_AreChecked) {
  const std::int64_t slots[] = {3, S};
  refuse(pooled(view_of(slots, {2})), {"pool.slots[1]:", "S=30", "given 30"});
  const std::int64_t twice[] = {3, 3};
  refuse(pooled(view_of(twice, {2})), {"pool.slots[1]:", "slot 3", "twice"});
  const std::int64_t skipped[] = {-1, -9};
  EXPECT_NO_THROW(core::check_recurrent_forward(pooled(view_of(skipped, {2}))));
  refuse(pooled(view_of(slots, {1})), {"pool.slots:", "N=2", "[1]"});
  refuse(pooled({}), {"pool.slots:", "required"});
  const float wrong[] = {0, 1};
  refuse(pooled(view_of(wrong, {2})), {"pool.slots:", "dtype i32 or i64", "f32"});
}

TEST_F(PoolArguments, SlotsPerToken_NeedAColumnForEveryToken) {
  std::vector<std::int32_t> slots(static_cast<std::size_t>(B * T));
  for (std::size_t i = 0; i < slots.size(); ++i)
    slots[i] = static_cast<std::int32_t>(i);
  EXPECT_NO_THROW(core::check_recurrent_forward(pooled(view_of(slots.data(), {B, T}))));
  refuse(pooled(view_of(slots.data(), {B, T - 1})), {"pool.slots:", "12 tokens", "Tmax=11"});
  refuse(pooled(view_of(slots.data(), {3, 8})), {"pool.slots:", "N=2", "[3,8]"});
  slots[13] = S + 4;
  refuse(pooled(view_of(slots.data(), {B, T})), {"pool.slots[1,1]:", "S=30", "34"});
}

TEST_F(PoolArguments, Accepted_IsChecked) {
  std::vector<std::int64_t> slots(static_cast<std::size_t>(B * T));
  for (std::size_t i = 0; i < slots.size(); ++i)
    slots[i] = static_cast<std::int64_t>(i);
  RecurrentForwardParams p = pooled(view_of(slots.data(), {B, T}));
  std::int64_t accepted[] = {0, T};
  p.pool.num_accepted = view_of(accepted, {2});
  EXPECT_NO_THROW(core::check_recurrent_forward(p));
  accepted[1] = T + 1;
  refuse(p, {"pool.num_accepted[1]:", "0 to 12", "13"});
  accepted[1] = -1;
  refuse(p, {"pool.num_accepted[1]:", "-1"});
  p.pool.num_accepted = view_of(accepted, {1});
  refuse(p, {"pool.num_accepted:", "N=2", "[1]"});
  p.pool.slots = view_of(slots.data(), {2});
  refuse(p, {"pool.num_accepted:", "[N,Tmax]"});
}

TEST_F(PoolArguments, OutputNorm_IsChecked) {
  RecurrentForwardParams p = recurrent();
  p.out_norm.gate = tensor({B, T, HV, V});
  refuse(p, {"out_norm.gate:", "out_norm.weight"});
  p.out_norm.weight = tensor({V});
  EXPECT_NO_THROW(core::check_recurrent_forward(p));
  p.out_norm.gate = tensor({B, T, HV, K});
  refuse(p, {"out_norm.gate:", "[B=2,T=12,HV=4,V=5]", "[2,12,4,6]"});
  p.out_norm.gate = tensor(DType::kBF16, {B, T, HV, V});
  refuse(p, {"out_norm.gate:", "dtype f32", "bf16"});
  p.out_norm.gate = {};
  EXPECT_NO_THROW(core::check_recurrent_forward(p));
  p.out_norm.eps = -1.0;
  refuse(p, {"out_norm.eps:", ">= 0", "-1"});
  p.out_norm.eps = -1e-9;
  refuse(p, {"out_norm.eps:", "given -1e-09"});
  p.out_norm.eps = std::nan("");
  refuse(p, {"out_norm.eps:", "nan"});
  p.out_norm.eps = 0.0;
  p.out_norm.weight = tensor({HV, V});
  refuse(p, {"out_norm.weight:", "[V=5]", "[4,5]"});
  p.out_norm.weight = tensor(DType::kBF16, {V});
  refuse(p, {"out_norm.weight:", "dtype f32", "bf16"});
  p.out_norm.weight = tensor({V});
  p.out_norm.weight.stride[0] = 2;
  refuse(p, {"out_norm.weight:", "contiguous"});
}

TEST_F(PoolArguments, BetaPerValue_ReplacesBeta) {
  RecurrentForwardParams p = recurrent();
  p.beta_v = tensor({B, T, HV, V});
  refuse(p, {"beta_v:", "replaces beta"});
  p.in.beta = {};
  EXPECT_NO_THROW(core::check_recurrent_forward(p));
  p.beta_v = tensor({B, T, HV});
  refuse(p, {"beta_v:", "[B=2,T=12,HV=4,V=5]", "[2,12,4]"});
}

}  // namespace
}  // namespace kda::test
