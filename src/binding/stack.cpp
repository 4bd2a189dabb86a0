#include "binding/stack.h"

#include <utility>

namespace kda::binding {

std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  if (!tensor.defined()) return std::nullopt;
  return tensor;
}

std::optional<at::Tensor> optional_tensor(const c10::IValue& value) {
  if (value.isNone()) return std::nullopt;
  return if_defined(value.toTensor());
}

c10::OperatorHandle find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow((std::string("kda::") + name).c_str(), "");
}

KdaArguments arguments_at(const Stack& stack, std::size_t first) {
  std::size_t i = first;
  const auto next = [&]() -> const c10::IValue& { return stack[i++]; };
  KdaArguments a;
  a.q = next().toTensor();
  a.k = next().toTensor();
  a.v = next().toTensor();
  a.g = next().toTensor();
  a.beta = next().toTensor();
  a.a_log = optional_tensor(next());
  a.dt_bias = optional_tensor(next());
  a.initial_state = optional_tensor(next());
  a.cu_seqlens = optional_tensor(next());
  a.scale = next().toOptional<double>();
  a.lower_bound = next().toOptional<double>();
  a.raw_gate = next().toBool();
  a.beta_is_logit = next().toBool();
  a.beta_max = next().toDouble();
  a.qk_l2norm = next().toBool();
  a.state_v_first = next().toBool();
  a.output_final_state = next().toBool();
  a.chunk = next().toInt();
  a.backend = next().toStringRef();
  a.keep_states = next().toBool();
  a.keep_factors = next().toBool();
  return a;
}

void push_arguments(Stack* stack, const KdaArguments& a) {
  torch::jit::push(*stack, a.q, a.k, a.v, a.g, a.beta, a.a_log, a.dt_bias, a.initial_state,
                   a.cu_seqlens, a.scale, a.lower_bound, a.raw_gate, a.beta_is_logit, a.beta_max,
                   a.qk_l2norm, a.state_v_first, a.output_final_state, a.chunk, a.backend,
                   a.keep_states, a.keep_factors);
}

OutputNormArguments norm_at(const Stack& stack, std::size_t first) {
  return {optional_tensor(stack[first]), optional_tensor(stack[first + 1]),
          stack[first + 2].toDouble()};
}

void push_norm(Stack* stack, const OutputNormArguments& norm) {
  torch::jit::push(*stack, norm.weight, norm.gate, norm.eps);
}

}  // namespace kda::binding
