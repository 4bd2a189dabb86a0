// Shapes and dtypes without data: the Meta kernels that fake tensors and torch.compile run.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <array>
#include <initializer_list>
#include <tuple>
#include <utility>

#include "binding/convert.h"
#include "binding/stack.h"

namespace kda::binding {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor empty_like_shape(c10::SymIntArrayRef shape, const at::TensorOptions& options) {
  return at::empty_symint(shape, options);
}

at::Tensor none_like(const at::Tensor& tensor, at::ScalarType dtype) {
  return at::empty({0}, tensor.options().dtype(dtype));
}

// torch calls these kernels as soon as one argument is on meta. If q is not, they would return
// memory that nothing wrote. (Fake tensors say meta here, whatever they stand for.)
void check_on_meta(const char* name, const at::Tensor& tensor,
                   std::initializer_list<std::pair<const char*, OptionalTensor>> others) {
  if (tensor.is_meta()) return;
  const char* other = "another argument";
  for (const auto& [candidate, value] : others) {
    if (value.has_value() && value->defined() && value->is_meta()) {
      other = candidate;
      break;
    }
  }
  TORCH_CHECK_VALUE(false, other, ": expected on ", tensor.device().str(), " like ", name,
                    ", given on meta");
}

void check_on_meta(const KdaArguments& a) {
  check_on_meta("q", a.q,
                {{"k", a.k},
                 {"v", a.v},
                 {"g", a.g},
                 {"beta", a.beta},
                 {"a_log", a.a_log},
                 {"dt_bias", a.dt_bias},
                 {"initial_state", a.initial_state},
                 {"cu_seqlens", a.cu_seqlens}});
}

// The ranks that the shape formulas below rely on; the data kernels check everything else.
void check_ranks(const KdaArguments& a) {
  check_on_meta(a);
  TORCH_CHECK_VALUE(a.q.dim() == 4, "q: expected [B,T,H,K] (rank 4), given rank ", a.q.dim());
  TORCH_CHECK_VALUE(a.v.dim() == 4, "v: expected [B,T,HV,V] (rank 4), given rank ", a.v.dim());
}

c10::SymInt sequences(const KdaArguments& a) {
  return a.cu_seqlens.has_value() ? a.cu_seqlens->sym_size(0) - 1 : a.q.sym_size(0);
}

at::Tensor output_of(const KdaArguments& a) {
  return empty_like_shape(a.v.sym_sizes(), a.q.options());
}

at::Tensor final_state_of(const KdaArguments& a) {
  if (!a.output_final_state) return none_like(a.q, at::ScalarType::Float);
  const c10::SymInt k = a.q.sym_size(3);
  const c10::SymInt v = a.v.sym_size(3);
  const std::array<c10::SymInt, 4> shape = {sequences(a), a.v.sym_size(2), a.state_v_first ? v : k,
                                            a.state_v_first ? k : v};
  return empty_like_shape(shape, a.q.options().dtype(accumulation_type(a.q.scalar_type())));
}

void chunk_fwd(const c10::OperatorHandle&, Stack* stack) {
  const std::size_t count = kSequenceCount + 2;
  const std::size_t first = stack->size() - count;
  const KdaArguments a = arguments_at(*stack, first);
  const auto h_dtype = (*stack)[first + kSequenceCount].toOptional<at::ScalarType>();
  const c10::SymInt kept_bytes = (*stack)[first + kSequenceCount + 1].toSymInt();
  check_ranks(a);
  at::Tensor h = none_like(a.q, h_dtype.value_or(at::ScalarType::Float));
  if (h_dtype.has_value()) {
    const c10::SymInt t = a.q.sym_size(1);
    const c10::SymInt block = kStateBlockTokens;
    const c10::SymInt blocks = a.cu_seqlens.has_value()
                                   ? t / block + sequences(a)
                                   : a.q.sym_size(0) * ((t + (block - 1)) / block);
    const std::array<c10::SymInt, 4> shape = {blocks, a.v.sym_size(2), a.q.sym_size(3),
                                              a.v.sym_size(3)};
    h = empty_like_shape(shape, a.q.options().dtype(*h_dtype));
  }
  const std::array<c10::SymInt, 1> kept_shape = {kept_bytes};
  at::Tensor kept = empty_like_shape(kept_shape, a.q.options().dtype(at::ScalarType::Byte));
  return_values(stack, count, output_of(a), final_state_of(a), std::move(h), std::move(kept));
}

void chunk_bwd(const c10::OperatorHandle&, Stack* stack) {
  const std::size_t count = kSequenceCount + 5;
  const std::size_t first = stack->size() - count;
  const KdaArguments a = arguments_at(*stack, first);
  const auto wanted = (*stack)[first + kSequenceCount + 3].toBoolList();
  check_ranks(a);
  const std::array<OptionalTensor, 8> of = {a.q,    a.k,     a.v,       a.g,
                                            a.beta, a.a_log, a.dt_bias, a.initial_state};
  std::array<at::Tensor, 8> gradients;
  for (std::size_t i = 0; i < of.size(); ++i) {
    gradients[i] = wanted[i] && of[i].has_value()
                       ? empty_like_shape(of[i]->sym_sizes(), of[i]->options())
                       : at::empty({0}, a.q.options());
  }
  torch::jit::drop(*stack, count);
  for (at::Tensor& gradient : gradients)
    torch::jit::push(*stack, std::move(gradient));
}

KdaArguments recurrent_arguments(const Stack& stack) {
  return arguments_at(stack, stack.size() - kRecurrentCount);
}

void recurrent_fwd(const c10::OperatorHandle&, Stack* stack) {
  const KdaArguments a = recurrent_arguments(*stack);
  check_ranks(a);
  return_values(stack, kRecurrentCount, output_of(a), final_state_of(a));
}

void recurrent_out(const c10::OperatorHandle&, Stack* stack) {
  const KdaArguments a = recurrent_arguments(*stack);
  check_ranks(a);
  return_values(stack, kRecurrentCount + 1, final_state_of(a));
}

void recurrent_pool(const c10::OperatorHandle&, Stack* stack) {
  const KdaArguments a = recurrent_arguments(*stack);
  check_ranks(a);
  return_values(stack, kRecurrentCount + 3, output_of(a));
}

void recurrent_pool_out(const c10::OperatorHandle&, Stack* stack) {
  check_ranks(recurrent_arguments(*stack));
  torch::jit::drop(*stack, kRecurrentCount + 4);
}

at::TensorOptions accumulation_options(const at::Tensor& tensor) {
  return tensor.options().dtype(accumulation_type(tensor.scalar_type()));
}

at::Tensor gate_fwd(const at::Tensor& g_raw, const OptionalTensor& a_log,
                    const OptionalTensor& dt_bias, std::optional<double>, c10::string_view) {
  check_on_meta("g", g_raw, {{"a_log", a_log}, {"dt_bias", dt_bias}});
  return empty_like_shape(g_raw.sym_sizes(), accumulation_options(g_raw));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> gate_bwd(
    const at::Tensor& g_raw, const OptionalTensor& a_log, const OptionalTensor& dt_bias,
    const at::Tensor& dg_ln, std::optional<double>, c10::string_view, std::array<bool, 3> wanted) {
  check_on_meta("g", g_raw, {{"a_log", a_log}, {"dt_bias", dt_bias}, {"dg_ln", dg_ln}});
  const auto gradient = [&](bool given, const OptionalTensor& of) {
    return given && of.has_value() && of->defined()
               ? empty_like_shape(of->sym_sizes(), of->options())
               : at::empty({0}, g_raw.options());
  };
  return {gradient(wanted[0], g_raw), gradient(wanted[1], a_log), gradient(wanted[2], dt_bias)};
}

at::Tensor gate_cumsum(const at::Tensor& g, const OptionalTensor& a_log,
                       const OptionalTensor& dt_bias, const OptionalTensor& cu_seqlens, bool,
                       std::int64_t, std::optional<double>, c10::string_view) {
  check_on_meta("g", g, {{"a_log", a_log}, {"dt_bias", dt_bias}, {"cu_seqlens", cu_seqlens}});
  return empty_like_shape(g.sym_sizes(), accumulation_options(g));
}

std::tuple<at::Tensor, at::Tensor> l2norm_fwd(const at::Tensor& x, double, c10::string_view) {
  TORCH_CHECK_VALUE(x.dim() == 4, "x: expected [B,T,H,K] (rank 4), given rank ", x.dim());
  return {empty_like_shape(x.sym_sizes(), x.options()),
          empty_like_shape(x.sym_sizes().slice(0, 3), accumulation_options(x))};
}

at::Tensor l2norm_bwd(const at::Tensor& x, const at::Tensor& dy, double, c10::string_view) {
  check_on_meta("x", x, {{"dy", dy}});
  return empty_like_shape(x.sym_sizes(), x.options());
}

}  // namespace

TORCH_LIBRARY_IMPL(kda, Meta, m) {
  m.impl("chunk_fwd", torch::CppFunction::makeFromBoxedFunction<&chunk_fwd>());
  m.impl("chunk_bwd", torch::CppFunction::makeFromBoxedFunction<&chunk_bwd>());
  m.impl("recurrent_fwd", torch::CppFunction::makeFromBoxedFunction<&recurrent_fwd>());
  m.impl("recurrent_out", torch::CppFunction::makeFromBoxedFunction<&recurrent_out>());
  m.impl("recurrent_pool", torch::CppFunction::makeFromBoxedFunction<&recurrent_pool>());
  m.impl("recurrent_pool_out", torch::CppFunction::makeFromBoxedFunction<&recurrent_pool_out>());
  m.impl("gate_fwd", gate_fwd);
  m.impl("gate_bwd", gate_bwd);
  m.impl("gate_cumsum", gate_cumsum);
  m.impl("l2norm_fwd", l2norm_fwd);
  m.impl("l2norm_bwd", l2norm_bwd);
}

}  // namespace kda::binding
