// The operators without a suffix, built from those with one: widen, then call. And autocast.
#include <ATen/autocast_mode.h>
#include <ATen/ops/reshape.h>
#include <torch/library.h>

#include "binding/convert.h"
#include "binding/operators.h"
#include "binding/stack.h"
#include "binding/widen.h"

namespace kda::binding {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

void chunk(const c10::OperatorHandle&, Stack* stack) {
  const KdaArguments a = widened(arguments_at(*stack, stack->size() - kSequenceCount));
  operators::ChunkForwardResult result = operators::chunk_fwd(a, std::nullopt);
  return_values(stack, kSequenceCount, std::move(result.o), std::move(result.final_state));
}

// The states at the starts of 64-token blocks as well, without a gradient of their own.
void chunk_states(const c10::OperatorHandle&, Stack* stack) {
  const KdaArguments a = widened(arguments_at(*stack, stack->size() - kSequenceCount));
  operators::ChunkForwardResult result = operators::chunk_fwd(a, checkpoint_dtype(a.q));
  return_values(stack, kSequenceCount, std::move(result.o), std::move(result.final_state),
                std::move(result.h));
}

void recurrent(const c10::OperatorHandle&, Stack* stack) {
  const std::size_t first = stack->size() - kRecurrentCount;
  const KdaArguments a = widened(arguments_at(*stack, first));
  const OutputNormArguments norm = widened(norm_at(*stack, first + kSequenceCount), a.q);
  auto [o, final_state] = operators::recurrent_fwd(a, norm);
  return_values(stack, kRecurrentCount, std::move(o), std::move(final_state));
}

// Any number of leading dimensions, for the operator that wants four.
at::Tensor gate_of(const at::Tensor& g_raw, const OptionalTensor& a_log,
                   const OptionalTensor& dt_bias, std::optional<double> lower_bound,
                   c10::string_view backend) {
  using GateForward = at::Tensor(const at::Tensor&, const OptionalTensor&, const OptionalTensor&,
                                 std::optional<double>, c10::string_view);
  static const auto op = find_operator("gate_fwd").typed<GateForward>();
  TORCH_CHECK_VALUE(g_raw.dim() >= 2, "g_raw: expected [...,HV,K], given rank ", g_raw.dim());
  const c10::SymInt value_heads = g_raw.sym_size(-2);
  const c10::SymInt key_dim = g_raw.sym_size(-1);
  const at::ScalarType wide = accumulation_type(g_raw.scalar_type());
  at::Tensor four = g_raw;
  if (g_raw.dim() != 4) {
    c10::SymInt rows = 1;
    for (std::int64_t d = 0; d < g_raw.dim() - 2; ++d)
      rows *= g_raw.sym_size(d);
    four = g_raw.reshape_symint(std::array<c10::SymInt, 4>{1, rows, value_heads, key_dim});
  }
  const at::Tensor g_ln =
      op.call(four, widened_a_log(a_log, value_heads, wide),
              widened_dt_bias(dt_bias, value_heads, key_dim, wide), lower_bound, backend);
  return g_raw.dim() == 4 ? g_ln : g_ln.reshape_symint(g_raw.sym_sizes());
}

// Autocast kernel of the sequence operators, which all end in the common arguments and kAfter more:
// promote them in place, then go on below autocast.
template <c10::DispatchKey kKey, std::size_t kAfter>
void autocast(const c10::OperatorHandle& op, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  const std::size_t first = stack->size() - kSequenceCount - kAfter;
  const Stack tail(stack->end() - static_cast<std::ptrdiff_t>(kAfter), stack->end());
  const KdaArguments a = promoted(arguments_at(*stack, first));
  stack->resize(first);
  push_arguments(stack, a);
  stack->insert(stack->end(), tail.begin(), tail.end());
  op.callBoxed(stack);
}

template <c10::DispatchKey kKey>
void register_autocast(torch::Library& m) {
  for (const char* name : {"chunk", "chunk_states"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&autocast<kKey, 0>>());
  }
  for (const char* name :
       {"recurrent", "recurrent_fwd", "recurrent_out", "recurrent_pool", "recurrent_pool_out"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&autocast<kKey, kNormCount>>());
  }
  m.impl("chunk_fwd", torch::CppFunction::makeFromBoxedFunction<&autocast<kKey, 2>>());
}

}  // namespace

TORCH_LIBRARY_IMPL(kda, CompositeImplicitAutograd, m) {
  m.impl("chunk", torch::CppFunction::makeFromBoxedFunction<&chunk>());
  m.impl("chunk_states", torch::CppFunction::makeFromBoxedFunction<&chunk_states>());
  m.impl("recurrent", torch::CppFunction::makeFromBoxedFunction<&recurrent>());
  m.impl("gate", gate_of);
}

TORCH_LIBRARY_IMPL(kda, AutocastCPU, m) { register_autocast<c10::DispatchKey::AutocastCPU>(m); }
TORCH_LIBRARY_IMPL(kda, AutocastCUDA, m) { register_autocast<c10::DispatchKey::AutocastCUDA>(m); }

}  // namespace kda::binding
