// The chunked forward, and the reverse scan of the backward, each in one kernel for sm_90a: raw
// bf16 inputs in, outputs and states (or X, dv and gradients of states) out, nothing in between in
// device memory. Of sequences in segments it runs twice, with their ends and maps in between.
//
// Grid: persistent blocks, at most one per multiprocessor, over work items (work.cuh).
// Block: C::kValueGroups update warpgroups, C::kPrepGroups prep warpgroups, one load warpgroup.
// With C::kCluster two blocks share an item.
#pragma once

#include "cuda/hopper/cluster_load.cuh"
#include "cuda/hopper/cluster_reverse.cuh"
#include "cuda/hopper/cluster_update.cuh"
#include "cuda/hopper/prep_role.cuh"
#include "cuda/hopper/quiet_update.cuh"
#include "cuda/hopper/reverse_update.cuh"
#include "cuda/hopper/update.cuh"

namespace kda::cuda::hopper {

// All threads of the blocks that share items.
template <typename C>
__device__ inline void meet() {
  if constexpr (C::kCluster) {
    __syncwarp();
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
}

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
    constexpr int kReaders = 4 * C::kValueGroups * ptx::kWarpArrivals;
    for (int slot = 0; slot < C::kSlots; ++slot) {
      ptx::mbarrier_init(loaded_barrier<C>(smem, slot), C::kLoadThreads);
      ptx::mbarrier_init(ready_barrier<C>(smem, slot), ptx::kWarpArrivals);
      ptx::mbarrier_init(free_barrier<C>(smem, slot), kReaders * C::kBlocks);
    }
    for (int slot = C::kSlots; slot < C::kAllSlots; ++slot) {  // free: the other block's
      ptx::mbarrier_init(ready_barrier<C>(smem, slot), 1);
      ptx::mbarrier_init(free_barrier<C>(smem, slot), kReaders);
    }
    for (int slot = 0; slot < C::kValueSlots; ++slot) {
      ptx::mbarrier_init(values_loaded_barrier<C>(smem, slot), C::kLoadThreads);
      ptx::mbarrier_init(values_free_barrier<C>(smem, slot), kReaders);
    }
    if constexpr (C::kSnapshots) {
      for (int stage = 0; stage < C::kStageGroups; ++stage) {
        ptx::mbarrier_init(stage_full_barrier<C>(smem, stage), 4 * ptx::kWarpArrivals);
        ptx::mbarrier_init(stage_free_barrier<C>(smem, stage), 2 * ptx::kWarpArrivals);
      }
    }
    ptx::mbarrier_init_fence();
  }
  if constexpr (C::kCluster) {
    constexpr bool kFirstPass = C::kValueGroups > 1;
    if (kFirstPass && args.segments.pass == 1) clear_chain<C>(args);
    if constexpr (!kFirstPass) {
      if (args.segments.pass == 2) make_chain<C>(args, shared);
    }
  }
  meet<C>();  // barriers before their users; all chains before the first copy to another block
  if (group < C::kValueGroups) {
    ptx::take_registers<C::kUpdateRegs>();
    if constexpr (C::kCluster && C::kReverse) {
      cluster_reverse_role<C>(args, smem, group, warp, lane, num_items);
    } else if constexpr (C::kCluster) {
      cluster_update_role<C>(args, smem, group, warp, lane, num_items);
    } else if constexpr (C::kReverse) {
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
    const int first = 32 * warp;  // compared instead of the thread: uniform
    if (first < C::kLoaders) {
      if constexpr (!C::kCluster) {
        load_role<C>(args, smem, warp, lane, num_items);
      } else if (first < C::kLoadThreads) {
        load_keys_role<C>(args, smem, first + lane, num_items);
      } else {
        load_values_role<C>(args, smem, first + lane - C::kLoadThreads, num_items);
      }
    } else if constexpr (C::kSnapshots) {
      snapshot_role<C>(args, smem, first + lane - C::kLoaders, num_items);
    }
  }
  if constexpr (C::kCluster) meet<C>();  // the other block still reports to this one
}

}  // namespace kda::cuda::hopper
