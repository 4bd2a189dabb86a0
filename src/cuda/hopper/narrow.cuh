// The chunk-local backward for sm_90a of K = V = 64; what it computes and reads: local.cuh.
//
// Grid: persistent blocks, at most one per multiprocessor, over (chunk, value head).
// Block: per stream a main warpgroup, a prep warpgroup, a load warpgroup (narrow_layout.cuh).
#pragma once

#include "cuda/hopper/narrow_load.cuh"
#include "cuda/hopper/narrow_main.cuh"

namespace kda::cuda::hopper::narrow {

template <typename L, bool kGrouped, bool kStandard>
__global__ void __launch_bounds__(L::kThreads, 1)
    local_kernel(const __grid_constant__ ChunkArgs args, std::uint32_t num_items) {
  extern __shared__ __align__(1024) char shared[];
  const int lane = threadIdx.x % 32;
  const int group = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 128, 0);
  const int warp = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32 % 4, 0);
  // Warpgroups: the main ones of all streams, then those of prep, then the loaders.
  const int stream = group % L::kStreams;
  const std::uint32_t smem = smem_address(shared) + stream * L::kStreamBytes;
  if (threadIdx.x % 128 == 0 && group < L::kStreams) {
    constexpr int kLoaders = 128;
    constexpr int kMain = L::kMainWarps * ptx::kWarpArrivals;
    for (int set = 0; set < 2; ++set) {
      ptx::mbarrier_init(local_barrier<L>(smem, L::kRawLoaded + set), kLoaders);
      ptx::mbarrier_init(local_barrier<L>(smem, L::kSetReady + set), 4 * ptx::kWarpArrivals);
      ptx::mbarrier_init(local_barrier<L>(smem, L::kSetFree + set), kMain);
    }
    for (int barrier = L::kStatesLoaded; barrier <= L::kDotReady; ++barrier)
      ptx::mbarrier_init(local_barrier<L>(smem, barrier), kLoaders);
    for (int barrier = L::kTilesFree; barrier < L::kNumBarriers; ++barrier)
      ptx::mbarrier_init(local_barrier<L>(smem, barrier), kMain);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();  // barriers before their users
  constexpr int kMains = L::kStreams * L::kHalves;
  if (group < kMains) {
    ptx::take_registers<L::kMainRegs>();
    local_main_role<L, kGrouped, kStandard>(args, smem, stream, 0, warp, lane, num_items);
  } else if (group < kMains + L::kStreams) {
    ptx::keep_registers<L::kPrepRegs>();
    local_prep_role<L, kStandard>(args, smem, stream, warp, lane, num_items);
  } else {
    ptx::keep_registers<L::kLoadRegs>();
    local_load_role<L>(args, smem, stream, 32 * warp + lane, num_items);
  }
}

}  // namespace kda::cuda::hopper::narrow
