// L2 norm: choice of the instruction set, scratch, threads.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/l2norm.cpp"
// clang-format off: this order is Highway's
#include "cpu/targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/l2norm-inl.h"
#include "cpu/ops.h"
#include "cpu/tasks.h"

#if HWY_ONCE
namespace kda::cpu {
namespace {

HWY_EXPORT(l2norm_row_floats);
HWY_EXPORT(l2norm_forward_task);
HWY_EXPORT(l2norm_backward_task);

template <typename Params, typename TaskFn>
void run(const Params& params, const core::Problem& p, TaskFn task_fn) {
  const std::size_t width =
      HWY_DYNAMIC_DISPATCH(l2norm_row_floats)(static_cast<std::size_t>(p.dims.K));
  const std::int64_t tasks = token_tasks(p.dims);
  const int threads = threads_for(tasks);
  std::vector<float> rows(static_cast<std::size_t>(threads) * 2 * width);
  run_tasks(tasks, threads, [&](std::int64_t task, int thread) {
    task_fn(params, p, task, width, rows.data() + static_cast<std::size_t>(thread) * 2 * width);
  });
}

}  // namespace

void l2norm_forward(const L2NormForwardParams& params, const core::Problem& p, const Context&) {
  run(params, p, HWY_DYNAMIC_DISPATCH(l2norm_forward_task));
}

void l2norm_backward(const L2NormBackwardParams& params, const core::Problem& p, const Context&) {
  run(params, p, HWY_DYNAMIC_DISPATCH(l2norm_backward_task));
}

}  // namespace kda::cpu
#endif  // HWY_ONCE
