// kda::recurrent_* on real memory, host and CUDA alike.
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "binding/convert.h"
#include "binding/stack.h"
#include "binding/widen.h"
#include "kda/ops/recurrent.h"

namespace kda::binding {
namespace {

[[noreturn]] void fail_argument(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

void check_ranks(const KdaArguments& a) {
  if (a.q.dim() != 4) {
    fail_argument("q: expected [B,T,H,K] (rank 4), given rank " + std::to_string(a.q.dim()));
  }
  if (a.v.dim() != 4) {
    fail_argument("v: expected [B,T,HV,V] (rank 4), given rank " + std::to_string(a.v.dim()));
  }
}

// The library calls the output "o"; the caller named it "out".
void check_out(const at::Tensor& out, const KdaArguments& a) {
  const auto text = [](const at::Tensor& tensor, at::ScalarType dtype) {
    std::string shape = "[";
    for (const std::int64_t extent : tensor.sizes()) {
      shape += (shape.size() > 1 ? "," : "") + std::to_string(extent);
    }
    return shape + "] " + c10::toString(dtype);
  };
  if (out.sizes() == a.v.sizes() && out.scalar_type() == a.q.scalar_type()) return;
  fail_argument("out: expected " + text(a.v, a.q.scalar_type()) + " (the shape of v), given " +
                text(out, out.scalar_type()));
}

// A call's norm and the tensors that own its memory.
struct Norm {
  OutputNorm view;
  at::Tensor weight;
};
Norm make_norm(const OutputNormArguments& given, const at::Tensor& q) {
  Norm norm;
  check_device("out_norm_weight", given.weight, q);
  check_device("out_gate", given.gate, q);
  if (given.gate.has_value()) {
    if (!given.weight.has_value()) fail_argument("out_gate: needs out_norm_weight");
    norm.view.gate = input_view("out_gate", *given.gate);
  }
  if (given.weight.has_value()) {
    norm.weight = given.weight->contiguous();
    norm.view.weight = input_view("out_norm_weight", norm.weight);
  }
  norm.view.eps = given.eps;
  return norm;
}

void run(const KdaArguments& a, const OutputNormArguments& norm_given,
         RecurrentForwardParams* params, const at::Tensor& out) {
  Launch launch = make_launch(a.backend, a.q);
  const Inputs inputs = make_inputs(a, /*recurrent=*/true);
  const Norm norm = make_norm(norm_given, a.q);
  params->out_norm = norm.view;
  check_device("out", out, a.q);
  params->in = inputs.in;
  params->beta_v = inputs.beta_v;
  params->o = output_view("out", out);
  if (wants_workspace(a.q)) {
    reserve_workspace(&launch, a.q, recurrent_forward_workspace_bytes(*params, launch.context));
  }
  recurrent_forward(*params, launch.context);
}

// Writes `out`, returns the final state (empty when not wanted).
at::Tensor run_with_state(const KdaArguments& a, const OutputNormArguments& norm,
                          const at::Tensor& out) {
  RecurrentForwardParams params;
  if (!a.output_final_state) {
    run(a, norm, &params, out);
    return at::empty({0}, a.q.options().dtype(at::ScalarType::Float));
  }
  const std::int64_t k = a.q.size(3);
  const std::int64_t v = a.v.size(3);
  at::Tensor state =
      at::empty({num_sequences(a), a.v.size(2), a.state_v_first ? v : k, a.state_v_first ? k : v},
                a.q.options().dtype(accumulation_type(a.q.scalar_type())));
  params.final_state_kv = state_output("final_state", state, a);
  run(a, norm, &params, out);
  return state;
}

void check_pool(const at::Tensor& pool, const KdaArguments& a) {
  if (pool.dim() != 4) {
    fail_argument(std::string("pool: expected ") + (a.state_v_first ? "[S,HV,V,K]" : "[S,HV,K,V]") +
                  " (rank 4), given rank " + std::to_string(pool.dim()));
  }
  if (a.state_v_first &&
      (pool.size(1) != a.v.size(2) || pool.size(2) != a.v.size(3) || pool.size(3) != a.q.size(3))) {
    fail_argument("pool: expected [S,HV=" + std::to_string(a.v.size(2)) +
                  ",V=" + std::to_string(a.v.size(3)) + ",K=" + std::to_string(a.q.size(3)) +
                  "] (state_v_first), given [" + std::to_string(pool.size(0)) + "," +
                  std::to_string(pool.size(1)) + "," + std::to_string(pool.size(2)) + "," +
                  std::to_string(pool.size(3)) + "]");
  }
}

void run_with_pool(const KdaArguments& a, const PoolArguments& pool,
                   const OutputNormArguments& norm, const at::Tensor& out) {
  if (a.output_final_state) {
    fail_argument("output_final_state: the pool receives the states, expected false");
  }
  check_pool(pool.pool, a);
  const at::MemOverlapStatus overlap = at::get_overlap_status(out, pool.pool);
  if (overlap == at::MemOverlapStatus::Full || overlap == at::MemOverlapStatus::Partial) {
    fail_argument("out: expected memory apart from the pool's, given a tensor that overlaps it");
  }
  check_device("pool", pool.pool, a.q);
  check_device("slots", pool.slots, a.q);
  check_device("num_accepted", pool.num_accepted, a.q);
  RecurrentForwardParams params;
  TensorView view = output_view("pool", pool.pool);
  params.pool.pool_kv = a.state_v_first ? view.transposed(2, 3) : view;
  params.pool.slots = input_view("slots", pool.slots);
  if (pool.num_accepted.has_value()) {
    params.pool.num_accepted = input_view("num_accepted", *pool.num_accepted);
  }
  run(a, norm, &params, out);
}

struct Call {
  KdaArguments arguments;
  OutputNormArguments norm;
};
Call call_at(const Stack& stack, std::size_t first) {
  Call call{widened(arguments_at(stack, first)), {}};
  call.norm = widened(norm_at(stack, first + kSequenceCount), call.arguments.q);
  return call;
}

void recurrent_fwd(const c10::OperatorHandle&, Stack* stack) {
  translating_errors([&] {
    const Call call = call_at(*stack, stack->size() - kRecurrentCount);
    const KdaArguments& a = call.arguments;
    const c10::OptionalDeviceGuard guard(a.q.device());
    check_ranks(a);
    at::Tensor o = at::empty(a.v.sizes(), a.q.options());
    at::Tensor state = run_with_state(a, call.norm, o);
    return_values(stack, kRecurrentCount, std::move(o), std::move(state));
  });
}

void recurrent_out(const c10::OperatorHandle&, Stack* stack) {
  translating_errors([&] {
    const std::size_t count = kRecurrentCount + 1;
    const std::size_t first = stack->size() - count;
    const at::Tensor out = (*stack)[first].toTensor();
    const Call call = call_at(*stack, first + 1);
    const KdaArguments& a = call.arguments;
    const c10::OptionalDeviceGuard guard(a.q.device());
    check_ranks(a);
    check_out(out, a);
    at::Tensor state = run_with_state(a, call.norm, out);
    return_values(stack, count, std::move(state));
  });
}

PoolArguments pool_at(const Stack& stack, std::size_t first) {
  return {stack[first].toTensor(), stack[first + 1].toTensor(), optional_tensor(stack[first + 2])};
}

void recurrent_pool(const c10::OperatorHandle&, Stack* stack) {
  translating_errors([&] {
    const std::size_t count = kRecurrentCount + 3;
    const std::size_t first = stack->size() - count;
    const PoolArguments pool = pool_at(*stack, first);
    const Call call = call_at(*stack, first + 3);
    const KdaArguments& a = call.arguments;
    const c10::OptionalDeviceGuard guard(a.q.device());
    check_ranks(a);
    at::Tensor o = at::empty(a.v.sizes(), a.q.options());
    run_with_pool(a, pool, call.norm, o);
    return_values(stack, count, std::move(o));
  });
}

void recurrent_pool_out(const c10::OperatorHandle&, Stack* stack) {
  translating_errors([&] {
    const std::size_t count = kRecurrentCount + 4;
    const std::size_t first = stack->size() - count;
    const at::Tensor out = (*stack)[first].toTensor();
    const PoolArguments pool = pool_at(*stack, first + 1);
    const Call call = call_at(*stack, first + 4);
    const KdaArguments& a = call.arguments;
    const c10::OptionalDeviceGuard guard(a.q.device());
    check_ranks(a);
    check_out(out, a);
    run_with_pool(a, pool, call.norm, out);
    torch::jit::drop(*stack, count);
  });
}

void register_all(torch::Library& m) {
  m.impl("recurrent_fwd", torch::CppFunction::makeFromBoxedFunction<&recurrent_fwd>());
  m.impl("recurrent_out", torch::CppFunction::makeFromBoxedFunction<&recurrent_out>());
  m.impl("recurrent_pool", torch::CppFunction::makeFromBoxedFunction<&recurrent_pool>());
  m.impl("recurrent_pool_out", torch::CppFunction::makeFromBoxedFunction<&recurrent_pool_out>());
}

}  // namespace

TORCH_LIBRARY_IMPL(kda, CPU, m) { register_all(m); }
TORCH_LIBRARY_IMPL(kda, CUDA, m) { register_all(m); }

}  // namespace kda::binding
