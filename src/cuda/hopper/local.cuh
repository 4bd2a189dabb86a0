// Chunk-local part of the backward for sm_90a, K = V = 128 (64: narrow.cuh), raw gates: from raw
// bf16 q, k, v, g, beta, d_o, the states at chunk starts, their gradients at chunk ends and X (of
// the reverse scan) to dq, dk, dg, dbeta and the shares of d a_log and d dt_bias. Nothing else is
// read.
//
// Grid: persistent blocks, at most one per multiprocessor, over (chunk, value head).
// Block: two main warpgroups, one prep warpgroup, one load warpgroup (local_layout.cuh).
#pragma once

#include "cuda/hopper/local_load.cuh"
#include "cuda/hopper/local_main.cuh"
#include "cuda/hopper/local_prep.cuh"

namespace kda::cuda::hopper {

template <typename L, bool kGrouped, bool kStandard>
__global__ void __launch_bounds__(L::kThreads, 1)
    local_kernel(const __grid_constant__ ChunkArgs args, std::uint32_t launched) {
  const std::uint32_t num_items = num_local_items(args, launched);
  extern __shared__ __align__(1024) char shared[];
  const std::uint32_t smem = smem_address(shared);
  const int lane = threadIdx.x % 32;
  const int group = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 128, 0);
  const int warp = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32 % 4, 0);
  if (threadIdx.x == 0) {
    constexpr int kLoaders = 128;
    constexpr int kMain = L::kMainWarps * ptx::kWarpArrivals;
    for (int set = 0; set < 2; ++set) {
      ptx::mbarrier_init(local_barrier<L>(smem, L::kRawLoaded + set), kLoaders);
      ptx::mbarrier_init(local_barrier<L>(smem, L::kSetReady + set), 4 * ptx::kWarpArrivals);
      ptx::mbarrier_init(local_barrier<L>(smem, L::kSetFree + set), kMain);
    }
    for (int barrier = L::kStatesLoaded; barrier <= L::kEnterReady; ++barrier)
      ptx::mbarrier_init(local_barrier<L>(smem, barrier), kLoaders);
    for (int barrier = L::kTilesFree; barrier < L::kNumBarriers; ++barrier)
      ptx::mbarrier_init(local_barrier<L>(smem, barrier), kMain);
    ptx::mbarrier_init_fence();
    ptx::store_shared(smem + L::kConstants, make_uint4(0U, 0U, 0x3f803f80U, 0U));
  }
  __syncthreads();  // barriers and constants before their users
  if (group < L::kHalves) {
    ptx::take_registers<L::kMainRegs>();
    local_main_role<L, kGrouped, kStandard>(args, smem, group, warp, lane, num_items);
  } else if (group == L::kHalves) {
    ptx::keep_registers<L::kPrepRegs>();
    local_prep_role<L, kStandard>(args, smem, warp, lane, num_items);
  } else {
    ptx::keep_registers<L::kLoadRegs>();
    local_load_role<L>(args, smem, 32 * warp + lane, num_items);
  }
}

}  // namespace kda::cuda::hopper
