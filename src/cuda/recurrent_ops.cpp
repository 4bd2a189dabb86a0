// The recurrent call: plan the workspace, fill the arguments, choose the kernel.
#include "cuda/convert.h"
#include "cuda/launch/launch.h"
#include "cuda/ops.h"
#include "cuda/plan.h"

namespace kda::cuda {
namespace {

RecurrentArgs recurrent_args(const RecurrentForwardParams& params, const core::Problem& problem) {
  RecurrentArgs args;
  args.shape = to_shape(problem);
  args.in = to_inputs(params.in, problem);
  args.norm.weight = static_cast<const float*>(params.out_norm.weight.data);
  args.norm.gate = to_tensor(params.out_norm.gate);
  args.norm.eps = static_cast<float>(params.out_norm.eps);
  args.beta_v = to_tensor(params.beta_v);
  args.o = to_tensor(params.o);
  args.final_state = to_tensor(params.final_state_kv);
  if (params.pool.pool_kv.defined()) {
    args.pool = to_tensor(params.pool.pool_kv);
    args.num_slots = params.pool.pool_kv.shape[0];
    args.slots = to_tensor(params.pool.slots);
    if (params.pool.slots.rank == 2) args.slot_columns = params.pool.slots.shape[1];
    args.num_accepted = to_tensor(params.pool.num_accepted);
  }
  return args;
}

// The general kernel sees a part of V only: its output waits in f32 for the norm.
bool norm_is_a_pass(const RecurrentArgs& args) {
  return args.norm.weight != nullptr && !decode_serves(args);
}

Tensor rows_f32(float* data, const Shape& shape) {
  Tensor t;
  t.data = data;
  t.s3 = 1;
  t.s2 = shape.V;
  t.s1 = shape.HV * t.s2;
  t.s0 = shape.T * t.s1;
  return t;
}

}  // namespace

std::size_t recurrent_forward_workspace(const RecurrentForwardParams& params,
                                        const core::Problem& problem) {
  RecurrentPlan plan;
  return plan_recurrent(problem, norm_is_a_pass(recurrent_args(params, problem)), nullptr, &plan);
}

void recurrent_forward(const RecurrentForwardParams& params, const core::Problem& problem,
                       const Context& context) {
  RecurrentArgs args = recurrent_args(params, problem);
  const bool norm_after = norm_is_a_pass(args);
  RecurrentPlan plan;
  check_workspace(plan_recurrent(problem, norm_after, nullptr, &plan), context);
  plan_recurrent(problem, norm_after, context.workspace.data, &plan);
  args.offsets = plan.offsets;
  if (problem.packed) {
    launch_offsets(packed_offsets(params.in, problem), problem.dims.N, problem.dims.T, plan.offsets,
                   context.stream);
  }
  if (decode_serves(args)) {
    launch_decode(args, context.stream);
  } else if (norm_after) {
    RecurrentArgs raw = args;
    raw.o = rows_f32(plan.o, args.shape);
    launch_recurrent(raw, context.stream);
    launch_output_norm(args, plan.o, context.stream);
  } else {
    launch_recurrent(args, context.stream);
  }
}

}  // namespace kda::cuda
