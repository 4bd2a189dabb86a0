// Chunked backward: choice of the instruction set, scratch, threads, and the sums over sequences.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/chunk_bwd.cpp"
// clang-format off: this order is Highway's
#include "cpu/targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>

#include "cpu/chunk_bwd-inl.h"
#include "cpu/ops.h"
#include "cpu/tasks.h"

#if HWY_ONCE
namespace kda::cpu {
namespace {

HWY_EXPORT(backward_scratch_bytes);
HWY_EXPORT(backward_task);

// Blocks whose start states one task may have to keep.
std::size_t snapshot_blocks(const ChunkBackwardParams& params, const core::Problem& p) {
  if (params.h_kv.defined()) return 0;
  std::int64_t longest = 0;
  for (std::int64_t n = 0; n < p.dims.N; ++n)
    longest = std::max(longest, p.sequence(n).length);
  return static_cast<std::size_t>((longest + kStateBlockTokens - 1) / kStateBlockTokens);
}

struct Layout {
  std::size_t task_bytes;
  std::size_t sums_per_head;  // doubles: K of d_dt_bias, then da_log
  std::size_t sums_bytes;
  std::size_t bytes;
};

Layout layout(const ChunkBackwardParams& params, const core::Problem& p, int threads) {
  Layout l{};
  l.task_bytes = HWY_DYNAMIC_DISPATCH(backward_scratch_bytes)(p.dims, snapshot_blocks(params, p));
  l.sums_per_head = p.raw_gate ? static_cast<std::size_t>(p.dims.K) + 1 : 0;
  l.sums_bytes = static_cast<std::size_t>(p.dims.N * p.dims.HV) * l.sums_per_head * sizeof(double);
  l.bytes = static_cast<std::size_t>(threads) * l.task_bytes + l.sums_bytes;
  return l;
}

// Adds the sequences' sums in their order.
void store_gate_sums(const ChunkBackwardParams& params, const core::Problem& p, const double* sums,
                     std::size_t per_head) {
  for (std::int64_t hv = 0; hv < p.dims.HV; ++hv) {
    for (std::int64_t k = 0; k <= p.dims.K; ++k) {
      double total = 0.0;
      for (std::int64_t n = 0; n < p.dims.N; ++n) {
        total += sums[static_cast<std::size_t>(n * p.dims.HV + hv) * per_head +
                      static_cast<std::size_t>(k)];
      }
      const TensorView& out = k < p.dims.K ? params.d_dt_bias : params.da_log;
      if (!out.defined()) continue;
      const std::int64_t at = hv * out.stride[0] + (k < p.dims.K ? k * out.stride[1] : 0);
      static_cast<float*>(out.data)[at] = static_cast<float>(total);
    }
  }
}

}  // namespace

std::size_t chunk_backward_workspace(const ChunkBackwardParams& params, const core::Problem& p) {
  return layout(params, p, threads_for(p.dims.N * p.dims.H)).bytes;
}

void chunk_backward(const ChunkBackwardParams& params, const core::Problem& p,
                    const Context& context) {
  const std::int64_t tasks = p.dims.N * p.dims.H;
  const int threads = threads_for(tasks);
  const Layout l = layout(params, p, threads);
  const ScratchBuffer scratch(l.bytes, context.workspace);
  auto* sums = static_cast<double*>(scratch.at(static_cast<std::size_t>(threads) * l.task_bytes));
  std::fill_n(sums, l.sums_bytes / sizeof(double), 0.0);
  const std::size_t blocks = snapshot_blocks(params, p);
  const auto task_fn = HWY_DYNAMIC_DISPATCH(backward_task);
  run_tasks(tasks, threads, [&](std::int64_t task, int thread) {
    const std::int64_t n = task / p.dims.H;
    task_fn(params, p, task, blocks, scratch.at(static_cast<std::size_t>(thread) * l.task_bytes),
            sums + static_cast<std::size_t>(n * p.dims.HV) * l.sums_per_head);
  });
  if (p.raw_gate) store_gate_sums(params, p, sums, l.sums_per_head);
}

}  // namespace kda::cpu
#endif  // HWY_ONCE
