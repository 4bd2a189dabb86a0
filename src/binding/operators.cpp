#include "binding/operators.h"

namespace kda::binding::operators {

ChunkForwardResult chunk_fwd(const KdaArguments& arguments, std::optional<at::ScalarType> h_dtype,
                             const c10::SymInt& kept_bytes) {
  static const c10::OperatorHandle op = find_operator("chunk_fwd");
  Stack stack;
  stack.reserve(kSequenceCount + 2);
  push_arguments(&stack, arguments);
  torch::jit::push(stack, h_dtype, kept_bytes);
  op.callBoxed(stack);
  return {stack[0].toTensor(), stack[1].toTensor(), stack[2].toTensor(), stack[3].toTensor()};
}

std::array<at::Tensor, 8> chunk_bwd(const KdaArguments& arguments,
                                    const std::optional<at::Tensor>& h,
                                    const std::optional<at::Tensor>& d_o,
                                    const std::optional<at::Tensor>& d_final_state,
                                    const std::array<bool, 8>& output_mask,
                                    const std::optional<at::Tensor>& kept) {
  static const c10::OperatorHandle op = find_operator("chunk_bwd");
  Stack stack;
  stack.reserve(kSequenceCount + 5);
  push_arguments(&stack, arguments);
  c10::List<bool> mask;
  for (const bool wanted : output_mask)
    mask.push_back(wanted);
  torch::jit::push(stack, h, d_o, d_final_state, mask, kept);
  op.callBoxed(stack);
  std::array<at::Tensor, 8> gradients;
  for (std::size_t i = 0; i < gradients.size(); ++i)
    gradients[i] = stack[i].toTensor();
  return gradients;
}

std::tuple<at::Tensor, at::Tensor> recurrent_fwd(const KdaArguments& arguments,
                                                 const OutputNormArguments& norm) {
  static const c10::OperatorHandle op = find_operator("recurrent_fwd");
  Stack stack;
  stack.reserve(kRecurrentCount);
  push_arguments(&stack, arguments);
  push_norm(&stack, norm);
  op.callBoxed(stack);
  return {stack[0].toTensor(), stack[1].toTensor()};
}

at::Tensor recurrent_pool(const KdaArguments& arguments, const PoolArguments& pool,
                          const OutputNormArguments& norm) {
  static const c10::OperatorHandle op = find_operator("recurrent_pool");
  Stack stack;
  stack.reserve(kRecurrentCount + 3);
  torch::jit::push(stack, pool.pool, pool.slots, pool.num_accepted);
  push_arguments(&stack, arguments);
  push_norm(&stack, norm);
  op.callBoxed(stack);
  return stack[0].toTensor();
}

}  // namespace kda::binding::operators
