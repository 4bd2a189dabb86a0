// KdaArguments on the dispatcher's stack. The sequence operators share twenty-one arguments; their
// kernels are boxed, so that the list is written once (kSequenceSchema) and read once (here).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <optional>
#include <string>

#include "binding/functional.h"

namespace kda::binding {

// The common tail of every sequence operator's schema, in the order of push_arguments.
inline constexpr const char* kSequenceSchema =
    "Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, "
    "Tensor? a_log=None, Tensor? dt_bias=None, Tensor? initial_state=None, "
    "Tensor? cu_seqlens=None, *, float? scale=None, float? lower_bound=None, "
    "bool raw_gate=False, bool beta_is_logit=False, float beta_max=1.0, bool qk_l2norm=False, "
    "bool state_v_first=False, bool output_final_state=False, int chunk=64, str backend='auto', "
    "bool keep_states=True, bool keep_factors=False";
inline constexpr std::size_t kSequenceCount = 21;

// What follows it in the recurrent operators.
inline constexpr const char* kNormSchema =
    ", Tensor? out_norm_weight=None, Tensor? out_gate=None, float out_norm_eps=1e-5";
inline constexpr std::size_t kNormCount = 3;
inline constexpr std::size_t kRecurrentCount = kSequenceCount + kNormCount;

using Stack = torch::jit::Stack;

// Reads the kSequenceCount values that start at `first`.
KdaArguments arguments_at(const Stack& stack, std::size_t first);
void push_arguments(Stack* stack, const KdaArguments& arguments);
OutputNormArguments norm_at(const Stack& stack, std::size_t first);
void push_norm(Stack* stack, const OutputNormArguments& norm);

// An absent optional tensor for nullopt, undefined and None alike.
std::optional<at::Tensor> optional_tensor(const c10::IValue& value);
std::optional<at::Tensor> if_defined(const at::Tensor& tensor);

// Operator `kda::<name>`; looked up once per call site through a static.
c10::OperatorHandle find_operator(const char* name);

// Replaces the last `count` values by `results`.
template <typename... Results>
void return_values(Stack* stack, std::size_t count, Results&&... results) {
  torch::jit::drop(*stack, count);
  torch::jit::push(*stack, std::forward<Results>(results)...);
}

}  // namespace kda::binding
