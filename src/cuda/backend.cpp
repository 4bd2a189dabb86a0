// The backend table of the CUDA library.
#include <string>

#include "cuda/hopper/scan.h"
#include "cuda/launch/launch.h"
#include "cuda/ops.h"
#include "cuda/plan.h"
#include "cuda/tiling/architectures.h"
#include "dispatch/backend_table.h"
#include "kda/cuda.h"
#include "kda/error.h"

namespace kda::cuda {
namespace {

std::string unsupported(Op, const core::Problem& problem) {
  if (problem.io == DType::kF64) return "f64 tensors: the CUDA backend serves f32, bf16 and f16";
  const DeviceLimits device = device_limits();
  if (device.major == 0) return std::string("no CUDA device: ") + device.error;
  return no_code_reason(KDA_CUDA_ARCHS_TEXT, device.major, device.minor);
}

std::size_t gate_backward_workspace(const GateBackwardParams& params,
                                    const core::Problem& problem) {
  GatePartials partials;
  return plan_gate_backward(params, problem, nullptr, &partials);
}

std::size_t chunk_forward_workspace(const ChunkForwardParams& params,
                                    const core::Problem& problem) {
  ChunkArgs args;
  if (hopper::forward_reason_against(params, problem).empty()) {
    return plan_chunk_map(problem, nullptr, &args);
  }
  return plan_chunk_forward(params, problem, nullptr, &args);
}

std::size_t chunk_backward_workspace(const ChunkBackwardParams& params,
                                     const core::Problem& problem) {
  ChunkArgs args;
  return plan_chunk_backward(params, problem, nullptr, &args);
}

}  // namespace

std::string chunk_forward_path(const ChunkForwardParams& params) {
  const std::string reason =
      hopper::forward_reason_against(params, core::check_chunk_forward(params));
  if (reason.empty()) return "fused kernel for Hopper (sm_90a)";
  return "portable kernels; the fused kernel for Hopper is not used: " + reason;
}

std::string chunk_backward_path(const ChunkBackwardParams& params) {
  const std::string reason =
      hopper::backward_reason_against(params, core::check_chunk_backward(params));
  if (reason.empty()) return "kernels for Hopper (sm_90a)";
  return "portable kernels; those for Hopper are not used: " + reason;
}

void set_hopper_enabled(bool enabled) { hopper::set_enabled(enabled); }
void set_hopper_segments(bool enabled) { hopper::set_segments(enabled); }
void set_hopper_standard_gate(bool enabled) { hopper::set_standard_gate(enabled); }

void check_workspace(std::size_t bytes, const Context& context) {
  if (bytes == 0) return;
  if (context.workspace.data == nullptr || context.workspace.bytes < bytes) {
    throw Error(
        ErrorCode::kOutOfMemory,
        "workspace: expected at least " + std::to_string(bytes) +
            " bytes of device memory (see the _workspace_bytes functions), given " +
            std::to_string(context.workspace.data == nullptr ? 0 : context.workspace.bytes));
  }
}

void register_backend() {
  static const BackendTable table = [] {
    BackendTable t;
    t.backend = Backend::kCuda;
    t.unsupported = unsupported;
    t.gate_forward = gate_forward;
    t.gate_backward = gate_backward;
    t.gate_cumsum_forward = gate_cumsum_forward;
    t.l2norm_forward = l2norm_forward;
    t.l2norm_backward = l2norm_backward;
    t.chunk_forward = chunk_forward;
    t.chunk_backward = chunk_backward;
    t.recurrent_forward = recurrent_forward;
    t.gate_backward_workspace = gate_backward_workspace;
    t.chunk_forward_workspace = chunk_forward_workspace;
    t.chunk_kept_bytes_per_block = kept_bytes_per_block;
    t.chunk_backward_workspace = chunk_backward_workspace;
    t.recurrent_forward_workspace = recurrent_forward_workspace;
    return t;
  }();
  kda::register_backend(&table);
}

}  // namespace kda::cuda
