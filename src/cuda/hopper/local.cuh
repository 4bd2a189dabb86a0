// Chunk-local part of the backward for sm_90a, K = V = 64 or 128, raw gates: from raw bf16 q, k, v,
// g, beta, d_o, the states at chunk starts, their gradients at chunk ends and X (of the reverse
// scan) to dq, dk, dg, dbeta and the shares of d a_log and d dt_bias. Nothing else is read.
//
// Grid: persistent blocks, at most one per multiprocessor, over (chunk, value head).
// Block: per stream one main warpgroup for each half of the channels, one prep warpgroup, one load
// warpgroup (local_layout.cuh).
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
  const int lane = threadIdx.x % 32;
  const int group = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 128, 0);
  const int warp = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32 % 4, 0);
  // Warpgroups: the main ones of all streams, then those of prep, then the loaders.
  const int stream = L::kStreams == 1 ? 0 : group % L::kStreams;
  const std::uint32_t smem = smem_address(shared) + stream * L::kStreamBytes;
  if (threadIdx.x % 128 == 0 && group < L::kStreams) {
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
  constexpr int kMains = L::kStreams * L::kHalves;
  if (group < kMains) {
    ptx::take_registers<L::kMainRegs>();
    const int half = L::kHalves == 1 ? 0 : group;
    local_main_role<L, kGrouped, kStandard>(args, smem, stream, half, warp, lane, num_items);
  } else if (group < kMains + L::kStreams) {
    ptx::keep_registers<L::kPrepRegs>();
    local_prep_role<L, kStandard>(args, smem, stream, warp, lane, num_items);
  } else {
    ptx::keep_registers<L::kLoadRegs>();
    local_load_role<L>(args, smem, stream, 32 * warp + lane, num_items);
  }
}

}  // namespace kda::cuda::hopper
