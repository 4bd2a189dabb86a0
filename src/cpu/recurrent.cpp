// Recurrent forward and decode: choice of the instruction set, scratch, threads.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/recurrent.cpp"
// clang-format off: this order is Highway's
#include "cpu/targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/ops.h"
#include "cpu/recurrent-inl.h"
#include "cpu/tasks.h"

#if HWY_ONCE
namespace kda::cpu {
namespace {
HWY_EXPORT(recurrent_scratch_bytes);
HWY_EXPORT(recurrent_task);
}  // namespace

std::size_t recurrent_forward_workspace(const RecurrentForwardParams&, const core::Problem& p) {
  const int threads = threads_for(p.dims.N * p.dims.HV);
  return static_cast<std::size_t>(threads) * HWY_DYNAMIC_DISPATCH(recurrent_scratch_bytes)(p.dims);
}

void recurrent_forward(const RecurrentForwardParams& params, const core::Problem& p,
                       const Context& context) {
  const std::int64_t tasks = p.dims.N * p.dims.HV;
  const int threads = threads_for(tasks);
  const std::size_t bytes = HWY_DYNAMIC_DISPATCH(recurrent_scratch_bytes)(p.dims);
  const ScratchBuffer scratch(static_cast<std::size_t>(threads) * bytes, context.workspace);
  const auto task_fn = HWY_DYNAMIC_DISPATCH(recurrent_task);
  run_tasks(tasks, threads, [&](std::int64_t task, int thread) {
    task_fn(params, p, task, scratch.at(static_cast<std::size_t>(thread) * bytes));
  });
}

}  // namespace kda::cpu
#endif  // HWY_ONCE
