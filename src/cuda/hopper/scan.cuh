// The chunked forward, and the reverse scan of the backward, each in one kernel for sm_90a: raw
// bf16 inputs in, outputs and states (or X, dv and gradients of states) out, nothing in between in
// device memory.
//
// Grid: persistent blocks, at most one per multiprocessor, over work items (work.cuh).
// Block: C::kValueGroups update warpgroups, C::kPrepGroups prep warpgroups, one load warpgroup.
#pragma once

#include "cuda/hopper/load.cuh"
#include "cuda/hopper/prep_role.cuh"
#include "cuda/hopper/reverse_update.cuh"
#include "cuda/hopper/update.cuh"

namespace kda::cuda::hopper {

template <typename C, bool kNorm>
__global__ void __launch_bounds__(C::kThreads, 1)
    scan_kernel(const __grid_constant__ ChunkArgs args, int launched) {
  const int num_items = num_items_of<C>(args, launched);
  extern __shared__ __align__(1024) char shared[];
  const std::uint32_t smem = smem_address(shared);
  const int lane = threadIdx.x % 32;
  // Uniform over a warp, and the compiler has to know it.
  const int group = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 128, 0);
  const int warp = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32 % 4, 0);
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < C::kSlots; ++slot) {
      ptx::mbarrier_init(loaded_barrier<C>(smem, slot), C::kLoadThreads);
      ptx::mbarrier_init(ready_barrier<C>(smem, slot), ptx::kWarpArrivals);
      ptx::mbarrier_init(free_barrier<C>(smem, slot), 4 * C::kValueGroups * ptx::kWarpArrivals);
    }
    if constexpr (C::kSnapshots) {
      for (int stage = 0; stage < C::kValueGroups; ++stage) {
        ptx::mbarrier_init(stage_full_barrier<C>(smem, stage), 4 * ptx::kWarpArrivals);
        ptx::mbarrier_init(stage_free_barrier<C>(smem, stage), 2 * ptx::kWarpArrivals);
      }
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();  // barriers before their users
  if (group < C::kValueGroups) {
    ptx::take_registers<C::kUpdateRegs>();
    if constexpr (C::kReverse) {
      reverse_update_role<C>(args, smem, group, warp, lane, num_items);
    } else {
      update_role<C>(args, smem, group, warp, lane, num_items);
    }
  } else if (group < C::kValueGroups + C::kPrepGroups) {
    if constexpr (C::kPrepRegs < 65536 / C::kThreads / 8 * 8) {
      ptx::keep_registers<C::kPrepRegs>();
    } else {
      ptx::take_registers<C::kPrepRegs>();
    }
    prep_role<C, kNorm>(args, smem, 4 * (group - C::kValueGroups) + warp, lane, num_items);
  } else {
    ptx::keep_registers<C::kLoadRegs>();
    if (32 * warp < C::kLoadThreads) {
      load_role<C>(args, smem, 32 * warp + lane, num_items);
    } else if constexpr (C::kSnapshots) {
      snapshot_role<C>(args, smem, 32 * warp + lane - C::kLoadThreads, num_items);
    }
  }
}

}  // namespace kda::cuda::hopper
