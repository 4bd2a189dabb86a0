// The SIMD backend as a function table.
#include "cpu/cpu_backend.h"

#include <string>

#include "cpu/ops.h"

namespace kda::cpu {
namespace {

std::string unsupported(Op, const core::Problem& problem) {
  if (problem.io != DType::kF32 && problem.io != DType::kBF16) {
    return std::string("dtype ") + name_of(problem.io) + "; supported: f32, bf16";
  }
  return {};
}

}  // namespace

const BackendTable* backend_table() {
  static const BackendTable table = [] {
    BackendTable t;
    t.backend = Backend::kCpu;
    t.unsupported = unsupported;
    t.gate_forward = gate_forward;
    t.gate_backward = gate_backward;
    t.gate_backward_workspace = gate_backward_workspace;
    t.gate_cumsum_forward = gate_cumsum_forward;
    t.l2norm_forward = l2norm_forward;
    t.l2norm_backward = l2norm_backward;
    t.recurrent_forward = recurrent_forward;
    t.recurrent_forward_workspace = recurrent_forward_workspace;
    t.chunk_forward = chunk_forward;
    t.chunk_forward_workspace = chunk_forward_workspace;
    t.chunk_backward = chunk_backward;
    t.chunk_backward_workspace = chunk_backward_workspace;
    return t;
  }();
  return &table;
}

}  // namespace kda::cpu
