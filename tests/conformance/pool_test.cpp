// The recurrent operator with a state pool, and with a step size per value channel: every backend
// against the oracle in double, whose own pool is tested by hand in tests/ref.
#include <gtest/gtest.h>

#include "conformance/expect.h"
#include "kda/ops/recurrent.h"
#include "support/random.h"
#include "support/run.h"
#include "support/tolerance.h"

namespace kda::test {
namespace {

struct PoolCase {
  std::string name;
  Case call;  // initial_state and final_state are ignored
  std::int64_t num_slots = 8;
  bool bf16 = false;  // the pool's dtype, else f32 (f64)
  Layout layout = Layout::kContiguous;
  std::vector<std::int64_t> slots;  // [N], or [N,Tmax] with Tmax > 0
  std::int64_t Tmax = 0;
  std::vector<std::int64_t> accepted{};
  DType index = DType::kI64;
  Layout index_layout = Layout::kContiguous;
};
void PrintTo(const PoolCase& c, std::ostream* os) { *os << c.name; }

struct PoolRun {
  HostTensor o;
  HostTensor pool;
  std::vector<unsigned char> bits_before, bits_after;
  std::vector<std::string> faults;
};

HostTensor initial_pool(const PoolCase& c, DType dtype) {
  Random random(81);
  HostTensor pool({c.num_slots, c.call.HV, c.call.K, c.call.V});
  for (double& x : pool.data)
    x = rounded(random.normal(), dtype);
  return pool;
}

PoolRun run_pool(const TestBackend& backend, const PoolCase& c, const CaseData& data,
                 const HostTensor& initial, DType pool_dtype) {
  const DeviceInputs inputs(backend, c.call, data);
  DeviceTensor pool(*backend.memory, pool_dtype, initial.shape, c.layout);
  pool.upload(initial);
  std::vector<std::int64_t> shape = {c.call.N()};
  if (c.Tmax > 0) shape.push_back(c.Tmax);
  DeviceTensor slots(*backend.memory, c.index, shape, c.index_layout);
  slots.upload(c.slots);
  DeviceTensor accepted;
  if (!c.accepted.empty()) {
    accepted = DeviceTensor(*backend.memory, c.index, {c.call.N()}, c.index_layout);
    accepted.upload(c.accepted);
  }
  DeviceTensor o(*backend.memory, backend.io, {c.call.B, c.call.T, c.call.HV, c.call.V},
                 c.call.out_layout);

  RecurrentForwardParams p;
  p.in = inputs.operator_inputs(c.call);
  p.o = o.view();
  p.pool.pool_kv = pool.view();
  p.pool.slots = slots.view();
  p.pool.num_accepted = accepted.view();
  PoolRun run;
  run.bits_before = pool.bits();
  Context context{.backend = backend.backend, .stream = backend.memory->stream()};
  const GuardedWorkspace workspace(*backend.memory, recurrent_forward_workspace_bytes(p, context));
  context.workspace = workspace.get();
  recurrent_forward(p, context);
  run.bits_after = pool.bits();
  run.o = o.download();
  run.pool = pool.download();
  run.faults = {pool.damage(), o.damage(), workspace.damage(), inputs.changed(),
                slots.changed() || accepted.changed() ? "an index tensor was written" : ""};
  return run;
}

std::vector<bool> written_slots(const PoolCase& c) {
  std::vector<bool> written(static_cast<std::size_t>(c.num_slots), false);
  for (std::int64_t n = 0; n < c.call.N(); ++n) {
    const std::int64_t length = c.call.cu.empty() ? c.call.T
                                                  : c.call.cu[static_cast<std::size_t>(n) + 1] -
                                                        c.call.cu[static_cast<std::size_t>(n)];
    const std::int64_t columns = c.Tmax > 0 ? length : std::min<std::int64_t>(length, 1);
    for (std::int64_t t = 0; t < columns; ++t) {
      const std::int64_t slot =
          c.slots[static_cast<std::size_t>(n * std::max<std::int64_t>(c.Tmax, 1) + t)];
      if (slot >= 0) written[static_cast<std::size_t>(slot)] = true;
    }
  }
  return written;
}

class PoolConformance : public ::testing::TestWithParam<std::tuple<TestBackend, PoolCase>> {};

TEST_P(PoolConformance, MatchesOracle) {
  const auto& [backend, c] = GetParam();
  const DType accum = backend.io == DType::kF64 ? DType::kF64 : DType::kF32;
  if (c.bf16 && accum == DType::kF64) GTEST_SKIP() << "a pool of an f64 call is f64";
  const DType pool_dtype = c.bf16 ? DType::kBF16 : accum;
  const CaseData data = make_data(c.call, backend.io);
  const HostTensor initial = initial_pool(c, pool_dtype);

  PoolRun given;
  const std::string refusal =
      refusal_of([&] { given = run_pool(backend, c, data, initial, pool_dtype); });
  KDA_SKIP_IF_REFUSED(backend, refusal);
  for (const std::string& fault : given.faults)
    EXPECT_EQ(fault, "");

  const TestBackend oracle{"oracle", Backend::kRef, DType::kF64, Arithmetic::kF64, &host_memory()};
  PoolCase plain = c;
  plain.layout = plain.index_layout = Layout::kContiguous;
  plain.call.in_layout = plain.call.out_layout = Layout::kContiguous;
  const PoolRun expected = run_pool(oracle, plain, data, initial, DType::kF64);
  expect_close({&backend, c.name, Quantity::kO, 0.0, nullptr}, expected.o, given.o);
  TestBackend pool_row = backend;  // the tolerance of what the pool stores
  if (c.bf16) pool_row.io = DType::kBF16;
  expect_close({&pool_row, c.name, Quantity::kFinalState, 0.0, nullptr}, expected.pool, given.pool);

  const std::vector<bool> written = written_slots(c);
  const std::size_t slot_bytes = given.bits_before.size() / written.size();
  for (std::size_t slot = 0; slot < written.size(); ++slot) {
    const auto first = static_cast<std::ptrdiff_t>(slot * slot_bytes);
    const bool same =
        std::equal(given.bits_before.begin() + first,
                   given.bits_before.begin() + first + static_cast<std::ptrdiff_t>(slot_bytes),
                   given.bits_after.begin() + first);
    EXPECT_EQ(same, !written[slot]) << "slot " << slot;
  }
}

std::vector<PoolCase> pool_cases() {
  const Case step{.name = "step",
                  .B = 3,
                  .T = 1,
                  .H = 2,
                  .HV = 4,
                  .K = 24,
                  .V = 20,
                  .initial_state = false,
                  .d_o = false,
                  .d_final_state = false,
                  .seed = 82};
  Case layer = step;  // everything that a model's decode step asks for
  layer.gate = GateInput::kSafe;
  layer.betas = Betas::kLogit;
  layer.qk_l2norm = true;
  layer.keys = Keys::kNormal;
  layer.K = layer.V = 64;
  Case verify = step;
  verify.T = 5;
  Case packed = step;
  packed.B = 1;
  packed.T = 7;
  packed.cu = {0, 3, 3, 4, 7};
  Case wide = step;
  wide.K = 128;
  wide.V = 128;
  Case layer_wide = layer;
  layer_wide.K = layer_wide.V = 128;
  Case verify_wide = layer_wide;
  verify_wide.T = 5;
  Case packed_wide = layer_wide;
  packed_wide.B = 1;
  packed_wide.T = 7;
  packed_wide.cu = {0, 3, 3, 4, 7};
  Case many = layer_wide;  // more states than a GPU works on at once
  many.B = 331;
  Case many_packed = many;
  many_packed.B = 1;
  many_packed.T = 331;
  Case strided = layer;
  strided.in_layout = strided.out_layout = Layout::kFusedSlice;

  std::vector<PoolCase> cases = {
      {.name = "step", .call = step, .slots = {5, 0, 3}},
      {.name = "step_i32", .call = step, .slots = {5, 0, 3}, .index = DType::kI32},
      {.name = "step_strided_slots",
       .call = step,
       .slots = {5, 0, 3},
       .index_layout = Layout::kLastStride2},
      {.name = "step_i32_strided_slots",
       .call = step,
       .slots = {5, 0, 3},
       .index = DType::kI32,
       .index_layout = Layout::kLastStride2},
      {.name = "step_skips_negative", .call = step, .slots = {-1, 7, -1}},
      {.name = "step_all_negative", .call = step, .slots = {-1, -7, -1}},
      {.name = "step_bf16", .call = step, .bf16 = true, .slots = {5, 0, 3}},
      {.name = "step_vk", .call = step, .layout = Layout::kTransposed, .slots = {5, 0, 3}},
      {.name = "step_strided_pool",
       .call = step,
       .layout = Layout::kFusedSlice,
       .slots = {5, 0, 3}},
      {.name = "step_k128", .call = wide, .slots = {5, 0, 3}},
      {.name = "layer", .call = layer, .slots = {1, 2, 6}},
      {.name = "layer_bf16", .call = layer, .bf16 = true, .slots = {1, 2, 6}},
      {.name = "layer_strided", .call = strided, .slots = {1, 2, 6}},
      {.name = "tokens_one_slot", .call = verify, .slots = {4, -1, 0}},
      {.name = "packed_one_slot", .call = packed, .slots = {4, 1, 0, 6}},
      {.name = "verify",
       .call = verify,
       .num_slots = 16,
       .slots = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14},
       .Tmax = 5},
      {.name = "verify_accepted",
       .call = verify,
       .num_slots = 16,
       .slots = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14},
       .Tmax = 5,
       .accepted = {5, 1, 3}},
      {.name = "verify_none_accepted",
       .call = verify,
       .num_slots = 16,
       .slots = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14},
       .Tmax = 5,
       .accepted = {0, 0, 2},
       .index = DType::kI32},
      {.name = "verify_holes_i32_strided",
       .call = verify,
       .num_slots = 16,
       .slots = {0, -1, 2, 3, -1, -1, 6, 7, 8, 9, 10, 11, -1, -1, 14},
       .Tmax = 5,
       .accepted = {3, 1, 4},
       .index = DType::kI32,
       .index_layout = Layout::kFusedSlice},
      {.name = "verify_spare_columns",
       .call = verify,
       .num_slots = 20,
       .slots = {0, 1, 2, 3, 4, 15, 5, 6, 7, 8, 9, 16, 10, 11, 12, 13, 14, 17},
       .Tmax = 6,
       .accepted = {6, 1, 6}},
      {.name = "verify_bf16",
       .call = verify,
       .num_slots = 16,
       .bf16 = true,
       .slots = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14},
       .Tmax = 5,
       .accepted = {5, 1, 3}},
      {.name = "packed_verify_empty_row",
       .call = packed,
       .num_slots = 16,
       .slots = {0, 1, 2, 3, 4, 5, 6, -1, -1, 9, 10, 11},
       .Tmax = 3,
       .accepted = {3, 2, 1, 0}},
      {.name = "layer_k128", .call = layer_wide, .slots = {1, 2, 6}},
      {.name = "layer_k128_bf16", .call = layer_wide, .bf16 = true, .slots = {1, -1, 6}},
      {.name = "verify_k128",
       .call = verify_wide,
       .num_slots = 16,
       .slots = {0, 1, 2, 3, -1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14},
       .Tmax = 5,
       .accepted = {4, 0, 3},
       .index = DType::kI32},
      {.name = "verify_k128_bf16",
       .call = verify_wide,
       .num_slots = 16,
       .bf16 = true,
       .slots = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14},
       .Tmax = 5,
       .accepted = {5, 1, 3}},
      {.name = "packed_k128", .call = packed_wide, .slots = {4, 1, 0, 6}},
      {.name = "packed_verify_k128",
       .call = packed_wide,
       .num_slots = 16,
       .slots = {0, 1, 2, 3, 4, 5, 6, -1, -1, 9, 10, 11},
       .Tmax = 3,
       .accepted = {3, 2, 1, 0}},
  };
  // Backwards through the pool, every seventh state skipped; one sequence in eleven has no token.
  PoolCase states{.name = "many_states", .call = many, .num_slots = 340, .slots = {}};
  for (std::int64_t n = 0; n < many.B; ++n) {
    states.slots.push_back(n % 7 == 3 ? -1 : 339 - n);
    many_packed.cu.push_back(n % 11 == 5 ? n + 1 : n);
  }
  many_packed.cu[0] = 0;
  many_packed.cu.push_back(many_packed.T);
  cases.push_back(states);
  states.name = "many_states_bf16";
  states.bf16 = true;
  cases.push_back(states);
  states.name = "many_states_packed";
  states.bf16 = false;
  states.call = many_packed;
  cases.push_back(states);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, PoolConformance,
                         ::testing::Combine(::testing::ValuesIn(test_backends()),
                                            ::testing::ValuesIn(pool_cases())),
                         BackendName());

class BetaPerValue : public ::testing::TestWithParam<TestBackend> {};

// beta_v: [B,T,HV,V] in place of beta; a constant one equals beta, a varying one matches the
// oracle.
TEST_P(BetaPerValue, MatchesOracle) {
  const TestBackend& backend = GetParam();
  const Case c{.name = "beta_v", .B = 2, .T = 19, .H = 1, .HV = 2, .K = 24, .V = 20, .seed = 83};
  const CaseData data = make_data(c, backend.io);
  const DType beta_dtype = dtypes_of(c, backend.io).gate_beta;
  Random random(84);
  HostTensor varying({c.B, c.T, c.HV, c.V});
  HostTensor constant(varying.shape);
  for (std::size_t i = 0; i < varying.data.size(); ++i) {
    varying.data[i] = rounded(random.uniform(), beta_dtype);
    constant.data[i] = data.beta.data[i / static_cast<std::size_t>(c.V)];
  }
  const auto run = [&](const TestBackend& on, const HostTensor* beta_v, DType dtype) {
    const DeviceInputs inputs(on, c, data);
    DeviceTensor o(*on.memory, on.io, {c.B, c.T, c.HV, c.V}, Layout::kContiguous);
    RecurrentForwardParams p;
    p.in = inputs.operator_inputs(c);
    DeviceTensor beta;
    if (beta_v != nullptr) {
      beta = DeviceTensor(*on.memory, dtype, beta_v->shape, Layout::kFusedSlice);
      beta.upload(*beta_v);
      p.in.beta = {};
      p.beta_v = beta.view();
    }
    p.o = o.view();
    Context context{.backend = on.backend, .stream = on.memory->stream()};
    const GuardedWorkspace workspace(*on.memory, recurrent_forward_workspace_bytes(p, context));
    context.workspace = workspace.get();
    recurrent_forward(p, context);
    EXPECT_EQ(o.damage(), "");
    return o.download();
  };
  const TestBackend oracle{"oracle", Backend::kRef, DType::kF64, Arithmetic::kF64, &host_memory()};
  const std::string refusal = refusal_of([&] {
    expect_close({&backend, "beta_v", Quantity::kO, 0.0, nullptr},
                 run(oracle, &varying, DType::kF64), run(backend, &varying, beta_dtype));
    expect_close({&backend, "beta_v_constant", Quantity::kO, 0.0, nullptr},
                 run(oracle, nullptr, DType::kF64), run(backend, &constant, beta_dtype));
  });
  KDA_SKIP_IF_REFUSED(backend, refusal);
}

INSTANTIATE_TEST_SUITE_P(All, BetaPerValue, ::testing::ValuesIn(test_backends()), BackendName());

}  // namespace
}  // namespace kda::test
