// Gate forward, backward and prefix sums: choice of the instruction set, scratch, threads.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gate.cpp"
// clang-format off: this order is Highway's
#include "cpu/targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/gate-inl.h"
#include "cpu/ops.h"
#include "cpu/tasks.h"

#if HWY_ONCE
namespace kda::cpu {
namespace {

HWY_EXPORT(gate_row_floats);
HWY_EXPORT(gate_forward_task);
HWY_EXPORT(gate_backward_task);
HWY_EXPORT(gate_cumsum_task);

constexpr std::size_t kRowsPerThread = 3;

std::size_t row_floats(const core::Problem& p) {
  return HWY_DYNAMIC_DISPATCH(gate_row_floats)(static_cast<std::size_t>(p.dims.K));
}

// Floats of one task's sums, in whole cache lines.
std::size_t partial_floats(const core::Problem& p) {
  const auto heads = static_cast<std::size_t>(p.dims.HV);
  return (heads * row_floats(p) + heads + 15) / 16 * 16;
}

}  // namespace

void gate_forward(const GateForwardParams& params, const core::Problem& p, const Context&) {
  const GateCall call = make_gate_call(params.gate, p, row_floats(p));
  const std::int64_t tasks = token_tasks(p.dims);
  const int threads = threads_for(tasks);
  std::vector<float> rows(static_cast<std::size_t>(threads) * call.width);
  const auto task_fn = HWY_DYNAMIC_DISPATCH(gate_forward_task);
  run_tasks(tasks, threads, [&](std::int64_t task, int thread) {
    task_fn(params, call, task, rows.data() + static_cast<std::size_t>(thread) * call.width);
  });
}

std::size_t gate_backward_workspace(const GateBackwardParams&, const core::Problem& p) {
  return static_cast<std::size_t>(token_tasks(p.dims)) * partial_floats(p) * sizeof(float);
}

void gate_backward(const GateBackwardParams& params, const core::Problem& p,
                   const Context& context) {
  const GateCall call = make_gate_call(params.gate, p, row_floats(p));
  const std::int64_t tasks = token_tasks(p.dims);
  const int threads = threads_for(tasks);
  const std::size_t stride = partial_floats(p);
  const ScratchBuffer scratch(gate_backward_workspace(params, p), context.workspace);
  auto* partials = static_cast<float*>(scratch.data());
  std::vector<float> rows(static_cast<std::size_t>(threads) * kRowsPerThread * call.width);
  const auto task_fn = HWY_DYNAMIC_DISPATCH(gate_backward_task);
  run_tasks(tasks, threads, [&](std::int64_t task, int thread) {
    task_fn(params, call, task,
            rows.data() + static_cast<std::size_t>(thread) * kRowsPerThread * call.width,
            partials + static_cast<std::size_t>(task) * stride);
  });

  // The tasks' sums, added in f64 in the order of the tokens.
  const auto heads = static_cast<std::size_t>(p.dims.HV);
  const auto sum_at = [&](std::size_t index) {
    double sum = 0.0;
    for (std::int64_t task = 0; task < tasks; ++task) {
      sum += static_cast<double>(partials[static_cast<std::size_t>(task) * stride + index]);
    }
    return static_cast<float>(sum);
  };
  for (std::size_t hv = 0; hv < heads; ++hv) {
    if (params.d_dt_bias.defined()) {
      for (std::size_t d = 0; d < call.k; ++d) {
        auto* out = static_cast<float*>(params.d_dt_bias.data);
        out[static_cast<std::int64_t>(hv) * params.d_dt_bias.stride[0] +
            static_cast<std::int64_t>(d) * params.d_dt_bias.stride[1]] =
            sum_at(hv * call.width + d);
      }
    }
    if (params.da_log.defined()) {
      static_cast<float*>(
          params.da_log.data)[static_cast<std::int64_t>(hv) * params.da_log.stride[0]] =
          sum_at(heads * call.width + hv);
    }
  }
}

void gate_cumsum_forward(const GateCumsumForwardParams& params, const core::Problem& p,
                         const Context&) {
  const GateCall call = make_gate_call(params.gate, p, row_floats(p));
  const std::int64_t tasks = p.dims.N * p.dims.HV;
  const int threads = threads_for(tasks);
  std::vector<float> rows(static_cast<std::size_t>(threads) * kRowsPerThread * call.width);
  const auto task_fn = HWY_DYNAMIC_DISPATCH(gate_cumsum_task);
  run_tasks(tasks, threads, [&](std::int64_t task, int thread) {
    task_fn(params, p, call, task,
            rows.data() + static_cast<std::size_t>(thread) * kRowsPerThread * call.width);
  });
}

}  // namespace kda::cpu
#endif  // HWY_ONCE
