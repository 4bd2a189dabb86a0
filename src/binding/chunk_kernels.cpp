// kda::chunk_fwd and kda::chunk_bwd on real memory, host and CUDA alike: allocate, view, call.
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <array>

#include "binding/convert.h"
#include "binding/stack.h"

namespace kda::binding {
namespace {

at::Tensor state_like(const KdaArguments& a) {
  const std::int64_t k = a.q.size(3);
  const std::int64_t v = a.v.size(3);
  return at::empty(
      {num_sequences(a), a.v.size(2), a.state_v_first ? v : k, a.state_v_first ? k : v},
      a.q.options().dtype(accumulation_type(a.q.scalar_type())));
}

// Extent of h that does not depend on the values of cu_seqlens, so that shapes are known without
// data: exact when dense, T / 64 + N when packed (the unused tail is zero).
std::int64_t state_block_bound(const KdaArguments& a) {
  const std::int64_t t = a.q.size(1);
  if (a.cu_seqlens.has_value()) return t / kStateBlockTokens + num_sequences(a);
  return a.q.size(0) * ((t + kStateBlockTokens - 1) / kStateBlockTokens);
}

void check_ranks(const KdaArguments& a) {
  const auto check = [](const char* name, const at::Tensor& tensor, const char* layout) {
    if (tensor.dim() == 4) return;
    throw Error(ErrorCode::kInvalidArgument, std::string(name) + ": expected " + layout +
                                                 " (rank 4), given rank " +
                                                 std::to_string(tensor.dim()));
  };
  check("q", a.q, "[B,T,H,K]");
  check("v", a.v, "[B,T,HV,V]");
}

void chunk_fwd(const c10::OperatorHandle&, Stack* stack) {
  translating_errors([&] {
    const std::size_t count = kSequenceCount + 2;
    const std::size_t first = stack->size() - count;
    const KdaArguments a = arguments_at(*stack, first);
    const auto h_dtype = (*stack)[first + kSequenceCount].toOptional<at::ScalarType>();
    const std::int64_t kept_bytes = (*stack)[first + kSequenceCount + 1].toInt();
    const c10::OptionalDeviceGuard guard(a.q.device());
    check_ranks(a);

    Launch launch = make_launch(a.backend, a.q);
    const Inputs inputs = make_inputs(a, /*recurrent=*/false);
    ChunkForwardParams params;
    params.in = inputs.in;
    params.chunk = chunk_of(a.chunk);

    at::Tensor o = at::empty(a.v.sizes(), a.q.options());
    params.o = output_view("o", o);
    at::Tensor final_state = at::empty({0}, a.q.options().dtype(at::ScalarType::Float));
    if (a.output_final_state) {
      final_state = state_like(a);
      params.final_state_kv = state_output("final_state", final_state, a);
    }
    at::Tensor h = at::empty({0}, a.q.options().dtype(h_dtype.value_or(at::ScalarType::Float)));
    if (h_dtype.has_value()) {
      const std::int64_t used = num_state_blocks(params.in);
      h = at::empty({state_block_bound(a), a.v.size(2), a.q.size(3), a.v.size(3)},
                    a.q.options().dtype(*h_dtype));
      if (used < h.size(0)) h.narrow(0, used, h.size(0) - used).zero_();
      params.h_kv = output_view("h", h.narrow(0, 0, used));
    }
    at::Tensor kept = at::empty({kept_bytes}, a.q.options().dtype(at::ScalarType::Byte));
    if (kept_bytes > 0)
      params.kept = {kept.mutable_data_ptr(), static_cast<std::size_t>(kept_bytes)};
    if (wants_workspace(a.q)) {
      reserve_workspace(&launch, a.q, chunk_forward_workspace_bytes(params, launch.context));
    }
    chunk_forward(params, launch.context);
    return_values(stack, count, std::move(o), std::move(final_state), std::move(h),
                  std::move(kept));
  });
}

void chunk_bwd(const c10::OperatorHandle&, Stack* stack) {
  translating_errors([&] {
    const std::size_t count = kSequenceCount + 5;
    const std::size_t first = stack->size() - count;
    const KdaArguments a = arguments_at(*stack, first);
    const std::size_t extra = first + kSequenceCount;
    const std::optional<at::Tensor> h = optional_tensor((*stack)[extra]);
    const std::optional<at::Tensor> d_o = optional_tensor((*stack)[extra + 1]);
    const std::optional<at::Tensor> d_final_state = optional_tensor((*stack)[extra + 2]);
    const auto wanted = (*stack)[extra + 3].toBoolList();
    const std::optional<at::Tensor> kept = optional_tensor((*stack)[extra + 4]);
    const c10::OptionalDeviceGuard guard(a.q.device());
    check_ranks(a);

    Launch launch = make_launch(a.backend, a.q);
    Inputs inputs = make_inputs(a, /*recurrent=*/false);
    check_device("h", h, a.q);
    check_device("d_o", d_o, a.q);
    check_device("d_final_state", d_final_state, a.q);
    ChunkBackwardParams params;
    params.in = inputs.in;
    params.chunk = chunk_of(a.chunk);
    if (h.has_value()) {
      params.h_kv = input_view("h", h->narrow(0, 0, num_state_blocks(params.in)));
    }
    check_device("kept", kept, a.q);
    if (kept.has_value() && kept->numel() > 0) {
      // Only read: the type of a workspace is for both directions.
      params.kept = {const_cast<void*>(kept->const_data_ptr()),
                     static_cast<std::size_t>(kept->nbytes())};
    }
    at::Tensor d_o_rows;
    if (d_o.has_value()) {
      d_o_rows = a.q.is_cuda() ? d_o->contiguous() : *d_o;
      params.d_o = input_view("d_o", d_o_rows);
    }
    if (d_final_state.has_value()) {
      params.d_final_state_kv = state_input("d_final_state", *d_final_state, a);
    }

    // Gradients come in the dtype and shape of the inputs they belong to, contiguous.
    std::array<at::Tensor, 8> gradients;
    const std::array<std::optional<at::Tensor>, 8> of = {
        a.q, a.k, a.v, a.g, a.beta, a.a_log, a.dt_bias, a.initial_state};
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const bool given = wanted[i] && of[i].has_value();
      gradients[i] =
          given ? at::empty(of[i]->sizes(), of[i]->options()) : at::empty({0}, a.q.options());
      if (!given) continue;
      TensorView* const targets[] = {
          &params.dq,    &params.dk,     &params.dv,        &params.dg,
          &params.dbeta, &params.da_log, &params.d_dt_bias, &params.d_initial_state_kv};
      *targets[i] = i == 7 ? state_output("d_initial_state", gradients[i], a)
                           : output_view("gradient", gradients[i]);
    }
    if (wants_workspace(a.q)) {
      reserve_workspace(&launch, a.q, chunk_backward_workspace_bytes(params, launch.context));
    }
    chunk_backward(params, launch.context);
    torch::jit::drop(*stack, count);
    for (at::Tensor& gradient : gradients)
      torch::jit::push(*stack, std::move(gradient));
  });
}

}  // namespace

// The CUDA key is served by the same code: it asks the loaded backends and says what is missing.
TORCH_LIBRARY_IMPL(kda, CPU, m) {
  m.impl("chunk_fwd", torch::CppFunction::makeFromBoxedFunction<&chunk_fwd>());
  m.impl("chunk_bwd", torch::CppFunction::makeFromBoxedFunction<&chunk_bwd>());
}
TORCH_LIBRARY_IMPL(kda, CUDA, m) {
  m.impl("chunk_fwd", torch::CppFunction::makeFromBoxedFunction<&chunk_fwd>());
  m.impl("chunk_bwd", torch::CppFunction::makeFromBoxedFunction<&chunk_bwd>());
}

}  // namespace kda::binding
