// The loaders of the chunk-local backward for K = V = 64: per stream one warpgroup that sends for
// the operands of one item after another; in between it computes sum_v S D of every channel.
#pragma once

#include "cuda/hopper/local_load.cuh"
#include "cuda/hopper/narrow_layout.cuh"

namespace kda::cuda::hopper::narrow {

template <typename L>
__device__ inline void load_set(const ChunkArgs& args, const LocalItem& item, std::uint32_t smem,
                                int set, int thread) {
  const std::uint32_t to = smem + L::kSets + set * L::kSetBytes;
  const int h = item.hv / args.shape.G;
  load_rows<L>(to + L::kColumns, args.in.g, item, item.hv, thread);
  load_rows<L>(to + L::kKeys, args.in.k, item, h, thread);
  load_rows<L>(to + L::kQueries, args.in.q, item, h, thread);
  ptx::cp_async_mbarrier_arrive(local_barrier<L>(smem, L::kRawLoaded + set));
}

template <typename L>
__device__ inline void local_load_role(const ChunkArgs& args, std::uint32_t smem, int stream,
                                       int thread, std::uint32_t num_items) {
  const auto find = [&](std::uint32_t from, LocalItem* found) {  // the next item that exists
    for (; from < num_items; from += item_step<L>()) {
      *found = local_item(args, from);
      if (found->chunk.length > 0) break;
    }
    return from;
  };
  LocalItem at;
  std::uint32_t item = find(first_item<L>() + stream, &at);
  if (item < num_items) load_set<L>(args, at, smem, 0, thread);
  for (std::uint32_t n = 0; item < num_items; ++n) {
    thread = ptx::forgotten(thread);
    smem = ptx::forgotten(smem);
    const std::uint32_t parity = n & 1U;
    ptx::mbarrier_wait(local_barrier<L>(smem, L::kTilesFree), parity ^ 1U);
    load_state<L>(args.h.data, item, smem + L::kStates, thread);
    ptx::cp_async_mbarrier_arrive(local_barrier<L>(smem, L::kStatesLoaded));
    const std::int64_t x_at = static_cast<std::int64_t>(item) * 64 * L::kD;
#pragma unroll
    for (int half = 0; half < L::kHalves; ++half) {
      load_tile(smem + L::kX + half * L::kTile, args.x.data, x_at + 64 * half, L::kD, 64, thread);
    }
    load_rows<L>(smem + L::kOut, args.d_o, at, at.hv, thread);
    ptx::cp_async_mbarrier_arrive(local_barrier<L>(smem, L::kRowsLoaded));
    load_state<L>(args.d_states.data, item, smem + L::kGradients, thread);
    ptx::cp_async_mbarrier_arrive(local_barrier<L>(smem, L::kGradientsLoaded));
    ptx::mbarrier_wait(local_barrier<L>(smem, L::kValuesFree), parity ^ 1U);
    load_rows<L>(smem + L::kValues, args.in.v, at, at.hv, thread);
    ptx::cp_async_mbarrier_arrive(local_barrier<L>(smem, L::kValuesLoaded));
    // The other set is free once the item before is finished; so is what it read of sum_v S D.
    LocalItem next;
    const std::uint32_t next_item = find(item + item_step<L>(), &next);
    const int next_set = static_cast<int>((n + 1) & 1U);
    ptx::mbarrier_wait(local_barrier<L>(smem, L::kSetFree + next_set), ((n + 1) / 2 & 1U) ^ 1U);
    if (next_item < num_items) load_set<L>(args, next, smem, next_set, thread);
    ptx::mbarrier_wait(local_barrier<L>(smem, L::kStatesLoaded), parity);
    ptx::mbarrier_wait(local_barrier<L>(smem, L::kGradientsLoaded), parity);
    // Two threads for a channel.
    float sum = state_dot<L>(smem, thread / 2, thread % 2, 2);
    sum += __shfl_xor_sync(0xffffffffU, sum, 1);
    if (thread % 2 == 0) ptx::store_shared_f(smem + L::kStateDot + thread * 2, sum);
    ptx::mbarrier_arrive(local_barrier<L>(smem, L::kDotReady));
    // S and D are read by all loaders before one of them sends for those of the next item: that the
    // main warps have freed the tiles says nothing about the loaders.
    ptx::named_sync(kLocalLoadSync + 5 * stream, 128);
    item = next_item;
    at = next;
  }
}

}  // namespace kda::cuda::hopper::narrow
