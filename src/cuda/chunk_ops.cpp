// The chunk calls: plan the workspace, fill the arguments, run the stages in order.
#include "cuda/convert.h"
#include "cuda/hopper/scan.h"
#include "cuda/launch/launch.h"
#include "cuda/ops.h"
#include "cuda/plan.h"

namespace kda::cuda {
namespace {

void make_map(const OperatorInputs& in, const core::Problem& problem, const ChunkArgs& args,
              void* stream) {
  if (!problem.packed) return;
  launch_packed_tables(packed_offsets(in, problem), problem.dims.N, args.map, args.segments,
                       stream);
}

}  // namespace

void chunk_forward(const ChunkForwardParams& params, const core::Problem& problem,
                   const Context& context) {
  ChunkArgs args;
  const bool fused = hopper::forward_reason_against(params, problem).empty();
  const bool keep = params.kept.data != nullptr;
  const auto plan = [&](void* base) {
    return fused ? plan_chunk_map(problem, base, &args)
                 : plan_chunk_forward(params, problem, base, &args);
  };
  check_workspace(plan(nullptr), context);
  plan(context.workspace.data);
  if (keep) plan_kept(params.kept, problem, &args);
  args.shape = to_shape(problem);
  args.in = to_inputs(params.in, problem);
  args.o = to_tensor(params.o);
  args.final_state = to_tensor(params.final_state_kv);
  args.h = to_tensor(params.h_kv);
  void* stream = context.stream;
  make_map(params.in, problem, args, stream);
  if (fused) {
    hopper::launch_forward(args, stream);
    if (keep) launch_prep_mma(args, stream);  // it has no factors in memory of its own
  } else if (path_of(problem) == Path::kMma) {
    launch_prep_mma(args, stream);
    launch_scan_fwd_mma(args, /*output=*/true, stream);
  } else {
    launch_prep_simt(args, stream);
    launch_scan_fwd_simt(args, /*output=*/true, stream);
  }
}

void chunk_backward(const ChunkBackwardParams& params, const core::Problem& problem,
                    const Context& context) {
  ChunkArgs args;
  check_workspace(plan_chunk_backward(params, problem, nullptr, &args), context);
  plan_chunk_backward(params, problem, context.workspace.data, &args);
  const bool kept = params.kept.data != nullptr;
  const bool fused = hopper::backward_reason_against(params, problem).empty();
  if (kept && !fused) plan_kept(params.kept, problem, &args);
  args.shape = to_shape(problem);
  args.in = to_inputs(params.in, problem);
  if (params.h_kv.defined()) args.h = to_tensor(params.h_kv);
  args.d_o = to_tensor(params.d_o);
  args.d_final_state = to_tensor(params.d_final_state_kv);
  args.dq = to_tensor(params.dq);
  args.dk = to_tensor(params.dk);
  args.dv = to_tensor(params.dv);
  args.dg = to_tensor(params.dg);
  args.dbeta = to_tensor(params.dbeta);
  args.da_log = static_cast<float*>(params.da_log.data);
  args.d_dt_bias = static_cast<float*>(params.d_dt_bias.data);
  args.d_initial_state = to_tensor(params.d_initial_state_kv);
  void* stream = context.stream;
  make_map(params.in, problem, args, stream);
  if (fused) {
    hopper::launch_reverse(args, stream);
    hopper::launch_local(args, stream);
    if (args.retry != nullptr) launch_retries(args, stream);
  } else if (path_of(problem) == Path::kMma) {
    if (!kept) launch_prep_mma(args, stream);
    if (!params.h_kv.defined()) launch_scan_fwd_mma(args, /*output=*/false, stream);
    launch_scan_rev_mma(args, stream);
    if (is_wide(problem.dims, Path::kMma)) {
      launch_local_wide_mma(args, stream);
      ChunkArgs rest = args;
      rest.dv = {};  // the scan has written it
      launch_value_bwd(rest, stream);
    } else {
      launch_local_mma(args, stream);
    }
  } else {
    if (!kept) launch_prep_simt(args, stream);
    if (!params.h_kv.defined()) launch_scan_fwd_simt(args, /*output=*/false, stream);
    launch_scan_rev_simt(args, stream);
    launch_local_simt(args, stream);
    launch_value_bwd(args, stream);
  }
  launch_finish(args, stream);
}

}  // namespace kda::cuda
