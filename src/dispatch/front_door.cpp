// The public functions: check once, choose a backend, call it.
#include "core/problem.h"
#include "dispatch/registry.h"
#include "kda/ops/chunk.h"
#include "kda/ops/gate.h"
#include "kda/ops/l2norm.h"
#include "kda/ops/recurrent.h"

namespace kda {

using dispatch::select;

void gate_forward(const GateForwardParams& params, const Context& context) {
  const core::Problem problem = core::check_gate_forward(params);
  select(Op::kGateForward, problem, context).gate_forward(params, problem, context);
}

void gate_backward(const GateBackwardParams& params, const Context& context) {
  const core::Problem problem = core::check_gate_backward(params);
  select(Op::kGateBackward, problem, context).gate_backward(params, problem, context);
}

std::size_t gate_backward_workspace_bytes(const GateBackwardParams& params,
                                          const Context& context) {
  const core::Problem problem = core::check_gate_backward(params);
  const BackendTable& table = select(Op::kGateBackward, problem, context);
  return table.gate_backward_workspace ? table.gate_backward_workspace(params, problem) : 0;
}

void gate_cumsum_forward(const GateCumsumForwardParams& params, const Context& context) {
  const core::Problem problem = core::check_gate_cumsum_forward(params);
  select(Op::kGateCumsumForward, problem, context).gate_cumsum_forward(params, problem, context);
}

void l2norm_forward(const L2NormForwardParams& params, const Context& context) {
  const core::Problem problem = core::check_l2norm_forward(params);
  select(Op::kL2NormForward, problem, context).l2norm_forward(params, problem, context);
}

void l2norm_backward(const L2NormBackwardParams& params, const Context& context) {
  const core::Problem problem = core::check_l2norm_backward(params);
  select(Op::kL2NormBackward, problem, context).l2norm_backward(params, problem, context);
}

void chunk_forward(const ChunkForwardParams& params, const Context& context) {
  const core::Problem problem = core::check_chunk_forward(params);
  select(Op::kChunkForward, problem, context).chunk_forward(params, problem, context);
}

void chunk_backward(const ChunkBackwardParams& params, const Context& context) {
  const core::Problem problem = core::check_chunk_backward(params);
  select(Op::kChunkBackward, problem, context).chunk_backward(params, problem, context);
}

std::size_t chunk_forward_workspace_bytes(const ChunkForwardParams& params,
                                          const Context& context) {
  const core::Problem problem = core::check_chunk_forward(params);
  const BackendTable& table = select(Op::kChunkForward, problem, context);
  return table.chunk_forward_workspace ? table.chunk_forward_workspace(params, problem) : 0;
}

std::size_t chunk_backward_workspace_bytes(const ChunkBackwardParams& params,
                                           const Context& context) {
  const core::Problem problem = core::check_chunk_backward(params);
  const BackendTable& table = select(Op::kChunkBackward, problem, context);
  return table.chunk_backward_workspace ? table.chunk_backward_workspace(params, problem) : 0;
}

void recurrent_forward(const RecurrentForwardParams& params, const Context& context) {
  const core::Problem problem = core::check_recurrent_forward(params);
  select(Op::kRecurrentForward, problem, context).recurrent_forward(params, problem, context);
}

std::size_t recurrent_forward_workspace_bytes(const RecurrentForwardParams& params,
                                              const Context& context) {
  const core::Problem problem = core::check_recurrent_forward(params);
  const BackendTable& table = select(Op::kRecurrentForward, problem, context);
  return table.recurrent_forward_workspace ? table.recurrent_forward_workspace(params, problem) : 0;
}

std::size_t chunk_kept_bytes_per_block(const Dims& dims, DType io, MemorySpace space) {
  const BackendTable* table = space == MemorySpace::kCuda ? dispatch::cuda_table() : nullptr;
  if (table == nullptr || table->chunk_kept_bytes_per_block == nullptr) return 0;
  return table->chunk_kept_bytes_per_block(dims, io);
}

std::int64_t num_state_blocks(const OperatorInputs& inputs) {
  return core::count_state_blocks(inputs);
}

BackendChoice explain_chunk_forward(const ChunkForwardParams& params) {
  return dispatch::explain(Op::kChunkForward, core::check_chunk_forward(params));
}

BackendChoice explain_chunk_backward(const ChunkBackwardParams& params) {
  return dispatch::explain(Op::kChunkBackward, core::check_chunk_backward(params));
}

BackendChoice explain_recurrent_forward(const RecurrentForwardParams& params) {
  return dispatch::explain(Op::kRecurrentForward, core::check_recurrent_forward(params));
}

}  // namespace kda
