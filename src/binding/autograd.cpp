// Autograd formulas of the forward operators. Everything else that gets a tensor which requires a
// gradient is served by forbid_backward.cpp.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <array>
#include <optional>

#include "binding/convert.h"
#include "binding/operators.h"
#include "binding/stack.h"

namespace kda::binding {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;

bool requires_grad(const OptionalTensor& tensor) {
  return tensor.has_value() && tensor->defined() && tensor->requires_grad();
}

// A gradient is wanted for differentiable input `i` of those that are defined: autograd numbers
// edges by the tensors it was given.
template <std::size_t kCount>
std::array<bool, kCount> wanted_gradients(AutogradContext* context,
                                          const std::array<bool, kCount>& given) {
  std::array<bool, kCount> wanted{};
  std::size_t edge = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    if (given[i]) wanted[i] = context->needs_input_grad(edge++);
  }
  return wanted;
}

DType dtype_of(at::ScalarType type) {
  if (type == at::kBFloat16) return DType::kBF16;
  if (type == at::kHalf) return DType::kF16;
  return type == at::kDouble ? DType::kF64 : DType::kF32;
}

// Bytes of what the backend can keep beside states; extents that torch.compile may leave open are
// those of batch, time and sequences.
c10::SymInt kept_bytes(const KdaArguments& a) {
  if (a.q.dim() != 4 || a.v.dim() != 4 || !a.q.is_cuda()) return 0;
  Dims dims;
  dims.H = a.q.sym_size(2).guard_int(__FILE__, __LINE__);
  dims.K = a.q.sym_size(3).guard_int(__FILE__, __LINE__);
  dims.HV = a.v.sym_size(2).guard_int(__FILE__, __LINE__);
  dims.V = a.v.sym_size(3).guard_int(__FILE__, __LINE__);
  const auto per_block = static_cast<std::int64_t>(
      chunk_kept_bytes_per_block(dims, dtype_of(a.q.scalar_type()), MemorySpace::kCuda));
  const c10::SymInt t = a.q.sym_size(1);
  const c10::SymInt block = kStateBlockTokens;
  const c10::SymInt blocks = a.cu_seqlens.has_value()
                                 ? t / block + (a.cu_seqlens->sym_size(0) - 1)
                                 : a.q.sym_size(0) * ((t + (block - 1)) / block);
  return blocks * per_block;
}

class ChunkFunction : public torch::autograd::Function<ChunkFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const at::Tensor& g, const at::Tensor& beta,
                               const OptionalTensor& a_log, const OptionalTensor& dt_bias,
                               const OptionalTensor& initial_state, const KdaArguments& arguments,
                               std::optional<at::ScalarType> h_dtype, const c10::SymInt& asked,
                               bool record) {
    std::optional<at::ScalarType> kept = h_dtype;
    if (record && arguments.keep_states && !kept.has_value()) kept = checkpoint_dtype(q);
    operators::ChunkForwardResult result;
    {
      const at::AutoDispatchBelowADInplaceOrView below;
      result = operators::chunk_fwd(
          arguments, kept, record && arguments.keep_factors ? kept_bytes(arguments) : asked);
    }
    const auto or_undefined = [](const OptionalTensor& tensor) {
      return tensor.value_or(at::Tensor());
    };
    context->save_for_backward({q, k, v, g, beta, or_undefined(a_log), or_undefined(dt_bias),
                                or_undefined(initial_state), or_undefined(arguments.cu_seqlens),
                                kept.has_value() && record ? result.h : at::Tensor(), result.kept});
    Stack options;
    push_arguments(&options, without_tensors(arguments));
    context->saved_data["options"] = c10::ivalue::Tuple::create(std::move(options));
    context->set_materialize_grads(false);
    if (!h_dtype.has_value()) result.h = at::empty({0}, result.h.options());
    variable_list constant = {result.h, result.kept};
    if (!arguments.output_final_state) constant.push_back(result.final_state);
    context->mark_non_differentiable(constant);
    return {result.o, result.final_state, result.h, result.kept};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const Stack options = context->saved_data["options"].toTupleRef().elements().vec();
    KdaArguments a = arguments_at(options, 0);
    a.q = saved[0];
    a.k = saved[1];
    a.v = saved[2];
    a.g = saved[3];
    a.beta = saved[4];
    a.a_log = if_defined(saved[5]);
    a.dt_bias = if_defined(saved[6]);
    a.initial_state = if_defined(saved[7]);
    a.cu_seqlens = if_defined(saved[8]);

    constexpr std::size_t kInputs = 8;
    variable_list result(kInputs + 4);
    const OptionalTensor d_o = if_defined(gradients[0]);
    const OptionalTensor d_final_state = if_defined(gradients[1]);
    if (!d_o.has_value() && !d_final_state.has_value()) return result;
    const std::array<bool, kInputs> wanted =
        wanted_gradients<kInputs>(context, {true, true, true, true, true, a.a_log.has_value(),
                                            a.dt_bias.has_value(), a.initial_state.has_value()});
    const std::array<at::Tensor, kInputs> computed =
        operators::chunk_bwd(a, if_defined(saved[9]), d_o, d_final_state, wanted, saved[10]);
    for (std::size_t i = 0; i < kInputs; ++i) {
      if (wanted[i]) result[i] = computed[i];
    }
    return result;
  }

 private:
  // The tensors are kept by save_for_backward, which checks their versions.
  static KdaArguments without_tensors(KdaArguments a) {
    a.q = a.k = a.v = a.g = a.beta = at::Tensor();
    for (auto* tensor : {&a.a_log, &a.dt_bias, &a.initial_state, &a.cu_seqlens})
      tensor->reset();
    return a;
  }
};

void chunk_fwd(const c10::OperatorHandle&, Stack* stack) {
  const std::size_t count = kSequenceCount + 2;
  const std::size_t first = stack->size() - count;
  const KdaArguments a = arguments_at(*stack, first);
  const auto h_dtype = (*stack)[first + kSequenceCount].toOptional<at::ScalarType>();
  const c10::SymInt asked = (*stack)[first + kSequenceCount + 1].toSymInt();
  const bool record = at::GradMode::is_enabled() &&
                      (a.q.requires_grad() || a.k.requires_grad() || a.v.requires_grad() ||
                       a.g.requires_grad() || a.beta.requires_grad() || requires_grad(a.a_log) ||
                       requires_grad(a.dt_bias) || requires_grad(a.initial_state));
  variable_list outputs = ChunkFunction::apply(a.q, a.k, a.v, a.g, a.beta, a.a_log, a.dt_bias,
                                               a.initial_state, a, h_dtype, asked, record);
  return_values(stack, count, outputs[0], outputs[1], outputs[2], outputs[3]);
}

using GateForward = at::Tensor(const at::Tensor&, const OptionalTensor&, const OptionalTensor&,
                               std::optional<double>, c10::string_view);
using GateBackward = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
    const at::Tensor&, const OptionalTensor&, const OptionalTensor&, const at::Tensor&,
    std::optional<double>, c10::string_view, std::array<bool, 3>);

class GateFunction : public torch::autograd::Function<GateFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& g_raw,
                            const OptionalTensor& a_log, const OptionalTensor& dt_bias,
                            std::optional<double> lower_bound, std::string backend) {
    static const auto op = find_operator("gate_fwd").typed<GateForward>();
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward(
        {g_raw, a_log.value_or(at::Tensor()), dt_bias.value_or(at::Tensor())});
    context->saved_data["lower_bound"] = lower_bound;
    context->saved_data["backend"] = backend;
    context->set_materialize_grads(false);
    return op.call(g_raw, a_log, dt_bias, lower_bound, backend);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    static const auto op = find_operator("gate_bwd").typed<GateBackward>();
    variable_list result(5);
    if (!gradients[0].defined()) return result;
    const variable_list saved = context->get_saved_variables();
    const std::array<bool, 3> wanted =
        wanted_gradients<3>(context, {true, saved[1].defined(), saved[2].defined()});
    const auto [dg_raw, da_log, d_dt_bias] =
        op.call(saved[0], if_defined(saved[1]), if_defined(saved[2]), gradients[0],
                context->saved_data["lower_bound"].toOptional<double>(),
                context->saved_data["backend"].toStringRef(), wanted);
    if (wanted[0]) result[0] = dg_raw;
    if (wanted[1]) result[1] = da_log;
    if (wanted[2]) result[2] = d_dt_bias;
    return result;
  }
};

at::Tensor gate_fwd(const at::Tensor& g_raw, const OptionalTensor& a_log,
                    const OptionalTensor& dt_bias, std::optional<double> lower_bound,
                    c10::string_view backend) {
  return GateFunction::apply(g_raw, a_log, dt_bias, lower_bound, std::string(backend));
}

using L2NormForward = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, double,
                                                         c10::string_view);
using L2NormBackward = at::Tensor(const at::Tensor&, const at::Tensor&, double, c10::string_view);

class L2NormFunction : public torch::autograd::Function<L2NormFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x, double eps,
                               std::string backend) {
    static const auto op = find_operator("l2norm_fwd").typed<L2NormForward>();
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [y, rstd] = op.call(x, eps, backend);
    context->save_for_backward({x});
    context->saved_data["eps"] = eps;
    context->saved_data["backend"] = backend;
    context->set_materialize_grads(false);
    context->mark_non_differentiable({rstd});
    return {y, rstd};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    static const auto op = find_operator("l2norm_bwd").typed<L2NormBackward>();
    variable_list result(3);
    if (!gradients[0].defined()) return result;
    const variable_list saved = context->get_saved_variables();
    result[0] = op.call(saved[0], gradients[0], context->saved_data["eps"].toDouble(),
                        context->saved_data["backend"].toStringRef());
    return result;
  }
};

std::tuple<at::Tensor, at::Tensor> l2norm_fwd(const at::Tensor& x, double eps,
                                              c10::string_view backend) {
  const variable_list outputs = L2NormFunction::apply(x, eps, std::string(backend));
  return {outputs[0], outputs[1]};
}

}  // namespace

TORCH_LIBRARY_IMPL(kda, Autograd, m) {
  m.impl("chunk_fwd", torch::CppFunction::makeFromBoxedFunction<&chunk_fwd>());
  m.impl("gate_fwd", gate_fwd);
  m.impl("l2norm_fwd", l2norm_fwd);
}

}  // namespace kda::binding
