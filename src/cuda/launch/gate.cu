// The gate and the L2 norm as operators of their own.
#include <algorithm>

#include "cuda/convert.h"
#include "cuda/kernels/gate.cuh"
#include "cuda/launch/check.cuh"
#include "cuda/launch/launch.h"
#include "cuda/ops.h"
#include "cuda/plan.h"

namespace kda::cuda {
namespace {

GateArgs gate_args(const ConstTensorView& g, const GateParams& gate, const core::Problem& problem) {
  GateArgs args;
  args.shape = to_shape(problem);
  args.g = to_tensor(g);
  args.gate = to_gate(gate, problem.raw_gate);
  return args;
}

NormArgs norm_args(const ConstTensorView& x, double eps) {
  NormArgs args;
  args.B = x.shape[0];
  args.T = x.shape[1];
  args.H = x.shape[2];
  args.K = x.shape[3];
  args.eps = static_cast<float>(eps);
  args.x = to_tensor(x);
  return args;
}

std::int64_t norm_blocks(const NormArgs& args) { return (args.B * args.T * args.H + 7) / 8; }

}  // namespace

void gate_forward(const GateForwardParams& params, const core::Problem& problem,
                  const Context& context) {
  GateArgs args = gate_args(params.g_raw, params.gate, problem);
  args.out = to_tensor(params.g_ln);
  const std::int64_t total = args.shape.B * args.shape.T * args.shape.HV * args.shape.K;
  launch("gate", gate_forward_kernel, std::min<std::int64_t>((total + 255) / 256, 132 * 64), 256, 0,
         context.stream, args);
}

void gate_backward(const GateBackwardParams& params, const core::Problem& problem,
                   const Context& context) {
  GateArgs args = gate_args(params.g_raw, params.gate, problem);
  args.out = to_tensor(params.dg_raw);
  args.dg_ln = to_tensor(params.dg_ln);
  GatePartials partials;
  check_workspace(plan_gate_backward(params, problem, nullptr, &partials), context);
  plan_gate_backward(params, problem, context.workspace.data, &partials);
  args.dbias_part = partials.dbias;
  args.da_log_part = partials.da_log;
  launch("gate_bwd", gate_backward_kernel, partials.num_blocks * args.shape.HV, 256, 0,
         context.stream, args, kGateBlockTokens);
  if (params.d_dt_bias.defined()) {
    launch_sum_blocks(partials.dbias, static_cast<float*>(params.d_dt_bias.data),
                      partials.num_blocks, args.shape.HV, args.shape.K, nullptr, context.stream);
  }
  if (params.da_log.defined()) {
    launch_sum_scalars(partials.da_log, static_cast<float*>(params.da_log.data),
                       partials.num_blocks, args.shape.HV, 1, nullptr, context.stream);
  }
}

void gate_cumsum_forward(const GateCumsumForwardParams& params, const core::Problem& problem,
                         const Context& context) {
  GateArgs args = gate_args(problem.raw_gate ? params.g_raw : params.g_ln, params.gate, problem);
  args.out = to_tensor(params.gcum_log2);
  args.chunk = params.chunk;
  const std::int64_t N = problem.dims.N;
  const std::int64_t groups =
      std::clamp<std::int64_t>((problem.dims.T + params.chunk - 1) / params.chunk, 1, 1024);
  const auto run = [&](std::int64_t sequences, const OffsetBatch& batch, int on_host) {
    if (sequences == 0) return;
    const dim3 grid(grid_of(sequences * args.shape.HV, "gate_cumsum"),
                    static_cast<unsigned>(groups));
    gate_cumsum_kernel<<<grid, 256, 0, static_cast<cudaStream_t>(context.stream)>>>(args, batch,
                                                                                    on_host);
    check_cuda(cudaGetLastError(), "gate_cumsum");
  };
  if (problem.packed && !problem.offsets_on_device) {
    for (std::int64_t first = 0; first < N; first += 128) {
      OffsetBatch batch{};
      const std::int64_t count = std::min<std::int64_t>(128, N - first);
      std::copy_n(problem.offsets.data() + first, count + 1, batch.offset);
      run(count, batch, 1);
    }
    return;
  }
  if (problem.packed) {
    args.offsets = static_cast<const std::int64_t*>(params.cu_seqlens.data);
    args.offsets_are_i32 = params.cu_seqlens.dtype == DType::kI32 ? 1 : 0;
    args.offsets_stride = params.cu_seqlens.stride[0];
  }
  run(N, OffsetBatch{}, 0);
}

void l2norm_forward(const L2NormForwardParams& params, const core::Problem&,
                    const Context& context) {
  NormArgs args = norm_args(params.x, params.eps);
  args.y = to_tensor(params.y);
  args.rstd = to_tensor(params.rstd);
  launch("l2norm", l2norm_kernel, norm_blocks(args), 256, 0, context.stream, args, false);
}

void l2norm_backward(const L2NormBackwardParams& params, const core::Problem&,
                     const Context& context) {
  NormArgs args = norm_args(params.x, params.eps);
  args.dy = to_tensor(params.dy);
  args.dx = to_tensor(params.dx);
  launch("l2norm_bwd", l2norm_kernel, norm_blocks(args), 256, 0, context.stream, args, true);
}

}  // namespace kda::cuda
