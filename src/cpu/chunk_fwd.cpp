// Chunked forward: choice of the instruction set, scratch, threads.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/chunk_fwd.cpp"
// clang-format off: this order is Highway's
#include "cpu/targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/chunk_fwd-inl.h"
#include "cpu/ops.h"
#include "cpu/tasks.h"

#if HWY_ONCE
namespace kda::cpu {
namespace {
HWY_EXPORT(forward_scratch_bytes);
HWY_EXPORT(forward_task);
}  // namespace

std::size_t chunk_forward_workspace(const ChunkForwardParams&, const core::Problem& p) {
  const int threads = threads_for(p.dims.N * p.dims.H);
  return static_cast<std::size_t>(threads) * HWY_DYNAMIC_DISPATCH(forward_scratch_bytes)(p.dims);
}

void chunk_forward(const ChunkForwardParams& params, const core::Problem& p,
                   const Context& context) {
  const std::int64_t tasks = p.dims.N * p.dims.H;
  const int threads = threads_for(tasks);
  const std::size_t bytes = HWY_DYNAMIC_DISPATCH(forward_scratch_bytes)(p.dims);
  const ScratchBuffer scratch(static_cast<std::size_t>(threads) * bytes, context.workspace);
  const auto task_fn = HWY_DYNAMIC_DISPATCH(forward_task);
  run_tasks(tasks, threads, [&](std::int64_t task, int thread) {
    task_fn(params, p, task, scratch.at(static_cast<std::size_t>(thread) * bytes));
  });
}

}  // namespace kda::cpu
#endif  // HWY_ONCE
