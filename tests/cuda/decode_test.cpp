// One token of every sequence, K = V = 128, goes to one of two kernels by its shape
// (cuda/tiling/decode.h): a dense call against the same tokens packed, which the ring serves
// whatever their number. Every bit of outputs and states is the same.
#include "cuda/tiling/decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/cuda_backends.h"
#include "kda/ops/recurrent.h"
#include "support/random.h"
#include "support/run.h"

namespace kda::test {
namespace {

struct DecodeCase {
  std::string name;
  std::int64_t N = 1;
  std::int64_t HV = 8;
  bool pool = true;
  bool bf16_states = false;
  bool norm = false;
  std::int64_t columns = 0;  // slots per sequence, 0: slots are [N]
  GateInput gate = GateInput::kSafe;
  DType index = DType::kI64;
};
void PrintTo(const DecodeCase& c, std::ostream* os) { *os << c.name; }

struct DecodeBits {
  std::vector<unsigned char> o, states;
};

Case call_of(const DecodeCase& c, bool packed) {
  Case call{.name = c.name, .B = c.N, .T = 1, .H = c.HV / 4, .HV = c.HV, .K = 128, .V = 128};
  call.gate = c.gate;
  call.betas = Betas::kLogit;
  call.qk_l2norm = true;
  call.keys = Keys::kNormal;
  call.seed = 311;
  if (!packed) return call;
  call.B = 1;
  call.T = c.N;
  for (std::int64_t n = 0; n <= c.N; ++n)
    call.cu.push_back(n);
  return call;
}

HostTensor random_tensor(std::vector<std::int64_t> shape, DType dtype, std::uint64_t seed) {
  HostTensor t(std::move(shape));
  Random random(seed);
  for (double& x : t.data)
    x = rounded(random.normal(), dtype);
  return t;
}

// Slots backwards, one in seven skipped; with columns, a sequence starts from its last one, or from
// nothing.
std::vector<std::int64_t> slots_of(const DecodeCase& c) {
  const std::int64_t columns = std::max<std::int64_t>(c.columns, 1);
  std::vector<std::int64_t> slots;
  for (std::int64_t i = 0; i < c.N * columns; ++i)
    slots.push_back(i % 7 == 3 ? -1 : c.N * columns - 1 - i);
  return slots;
}

DecodeBits run(const TestBackend& backend, const DecodeCase& c, bool packed) {
  DeviceMemory& memory = *backend.memory;
  const Case call = call_of(c, packed);
  CaseData data = make_data(call_of(c, true), backend.io);
  if (!packed) {  // the same values, another shape
    for (HostTensor* t : {&data.q, &data.k, &data.v, &data.g, &data.beta, &data.d_o})
      if (t->defined()) std::swap(t->shape[0], t->shape[1]);
  }
  const DeviceInputs inputs(backend, call, data);
  DeviceTensor o(memory, backend.io, {call.B, call.T, c.HV, 128}, Layout::kContiguous);
  const DType dtype = c.bf16_states ? DType::kBF16 : DType::kF32;
  const std::int64_t num_states = c.N * std::max<std::int64_t>(c.columns, 1);
  const std::vector<std::int64_t> states_shape = {num_states, c.HV, 128, 128};
  DeviceTensor states(memory, dtype, states_shape, Layout::kContiguous);
  DeviceTensor slots;
  DeviceTensor accepted;
  DeviceTensor weight;
  DeviceTensor gate;
  RecurrentForwardParams p;
  p.in = inputs.operator_inputs(call);
  p.o = o.view();
  if (c.pool) {
    states.upload(random_tensor(states_shape, dtype, 5));
    std::vector<std::int64_t> shape = {c.N};
    if (c.columns > 0) shape.push_back(c.columns);
    slots = DeviceTensor(memory, c.index, shape, Layout::kContiguous);
    slots.upload(slots_of(c));
    p.in.initial_state_kv = {};
    p.pool.pool_kv = states.view();
    p.pool.slots = slots.view();
    if (c.columns > 0) {
      std::vector<std::int64_t> counts;
      for (std::int64_t n = 0; n < c.N; ++n)
        counts.push_back(n % 3 == 0 ? 0 : c.columns);
      accepted = DeviceTensor(memory, c.index, {c.N}, Layout::kContiguous);
      accepted.upload(counts);
      p.pool.num_accepted = accepted.view();
    }
  } else {
    p.final_state_kv = states.view();
  }
  if (c.norm) {
    weight = DeviceTensor(memory, DType::kF32, {128}, Layout::kContiguous);
    weight.upload(random_tensor({128}, DType::kF32, 6));
    gate = DeviceTensor(memory, backend.io, {call.B, call.T, c.HV, 128}, Layout::kContiguous);
    gate.upload(random_tensor({call.B, call.T, c.HV, 128}, backend.io, 7));
    p.out_norm.weight = weight.view();
    p.out_norm.gate = gate.view();
  }
  Context context{.backend = backend.backend, .stream = memory.stream()};
  const GuardedWorkspace workspace(memory, recurrent_forward_workspace_bytes(p, context));
  context.workspace = workspace.get();
  recurrent_forward(p, context);
  for (const std::string& fault : {o.damage(), states.damage(), inputs.changed()})
    EXPECT_EQ(fault, "");
  return {o.bits(), states.bits()};
}

class CudaDecode : public ::testing::TestWithParam<std::tuple<DecodeCase, int>> {};

TEST_P(CudaDecode, OneTokenDenseAndPacked_SameBits) {
  std::string reason;
  if (!have_gpu(&reason)) GTEST_SKIP() << reason;
  const auto& [c, type] = GetParam();
  const TestBackend backend = cuda_backends()[static_cast<std::size_t>(type)];
  const DecodeBits dense = run(backend, c, false);
  const DecodeBits packed = run(backend, c, true);
  EXPECT_EQ(dense.o, packed.o);
  EXPECT_EQ(dense.states, packed.states);
}

std::vector<DecodeCase> cases() {
  std::vector<DecodeCase> all;
  for (const bool bf16 : {false, true}) {
    for (const bool norm : {false, true}) {
      const std::string tail = std::string(bf16 ? "_bf16" : "") + (norm ? "_norm" : "");
      DecodeCase c;
      c.bf16_states = bf16;
      c.norm = norm;
      c.N = 3;
      c.name = "few" + tail;
      all.push_back(c);
      c.index = DType::kI32;
      c.columns = 2;
      c.gate = GateInput::kStandard;
      c.name = "columns" + tail;
      all.push_back(c);
      c.columns = 0;
      c.N = bf16 ? 100 : 64;  // packed, the blocks of the ring have several states each
      c.name = "many" + tail;
      all.push_back(c);
      if (bf16) continue;
      c.pool = false;
      c.N = 5;
      c.gate = GateInput::kReady;
      c.name = "no_pool" + tail;
      all.push_back(c);
    }
  }
  return all;
}

std::string test_name(const ::testing::TestParamInfo<std::tuple<DecodeCase, int>>& test) {
  constexpr const char* kTypes[] = {"f32", "bf16", "f16"};
  return std::get<0>(test.param).name + "_" + kTypes[std::get<1>(test.param)];
}

INSTANTIATE_TEST_SUITE_P(All, CudaDecode,
                         ::testing::Combine(::testing::ValuesIn(cases()),
                                            ::testing::Values(0, 1, 2)),
                         test_name);

// The cases above meet both kernels only as long as the rule sends them there.
TEST(CudaDecodeCases, DenseOnesAreServedAtOnce) {
  for (const DecodeCase& c : cases()) {
    const cuda::DecodeCall call{c.N, c.HV, true, c.bf16_states, c.norm};
    EXPECT_TRUE(cuda::decodes_at_once(call, 132)) << c.name;
  }
}

}  // namespace
}  // namespace kda::test
