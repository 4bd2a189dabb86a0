// The loaders of the chunk-local backward: one warpgroup that sends for the operands of one item
// after another; in between it computes sum_v S D of every channel.
#pragma once

#include "cuda/hopper/local_layout.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/shared_vector.cuh"
#include "cuda/ptx/warpgroup.cuh"

namespace kda::cuda::hopper {

// A [64, 64] block whose rows are `stride` elements apart; rows from `rows` on become zero.
__device__ inline void load_tile(std::uint32_t to, const void* data, std::int64_t offset,
                                 std::int64_t stride, int rows, int thread) {
  const int row = thread / 8;
  const auto* from =
      static_cast<const std::uint16_t*>(data) + offset + row * stride + thread % 8 * 8;
  to += tile_offset(row, thread % 8);
#pragma unroll
  for (int round = 0; round < 4; ++round) {
    ptx::cp_async_or_zero(to + 16 * round * kRowBytes, from, row + 16 * round < rows);
    from += 16 * stride;
  }
}

// All columns of a chunk's rows.
template <typename L>
__device__ inline void load_rows(std::uint32_t to, const Tensor& t, const LocalItem& item, int head,
                                 int thread) {
  const std::int64_t at =
      item.chunk.row * t.s0 + item.chunk.begin * t.s1 + head * static_cast<std::int64_t>(t.s2);
  const int rows = t.data == nullptr ? 0 : item.chunk.length;
#pragma unroll
  for (int half = 0; half < L::kHalves; ++half)
    load_tile(to + half * L::kTile, t.data, at + 64 * half, t.s1, rows, thread);
}

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
__device__ inline void load_state(const void* data, std::uint32_t item, std::uint32_t to,
                                  int thread) {
  constexpr int H = L::kHalves;
#pragma unroll
  for (int part = 0; part < H * H; ++part) {  // [channel half][value half]
    load_tile(
        to + part * L::kTile, data,
        static_cast<std::int64_t>(item) * L::kD * L::kD + part / H * 64 * L::kD + part % H * 64,
        L::kD, 64, thread);
  }
}

// sum_v S D of channel `d`, over 16-byte pieces first, first + step, .. of each tile's row.
template <typename L>
__device__ inline float state_dot(std::uint32_t smem, int d, int first = 0, int step = 1) {
  float sum = 0.0F;
#pragma unroll
  for (int value_half = 0; value_half < L::kHalves; ++value_half) {
    const std::uint32_t tile = smem + (d / 64 * L::kHalves + value_half) * L::kTile;
#pragma unroll 2
    for (int piece = first; piece < 8; piece += step) {
      const std::uint32_t at = tile + tile_offset(d % 64, piece);
      const uint4 a = ptx::load_shared(at + L::kStates);
      const uint4 b = ptx::load_shared(at + L::kGradients);
      sum += low_of(a.x) * low_of(b.x) + high_of(a.x) * high_of(b.x);
      sum += low_of(a.y) * low_of(b.y) + high_of(a.y) * high_of(b.y);
      sum += low_of(a.z) * low_of(b.z) + high_of(a.z) * high_of(b.z);
      sum += low_of(a.w) * low_of(b.w) + high_of(a.w) * high_of(b.w);
    }
  }
  return sum;
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
    if constexpr (L::kD == 128) {
      ptx::store_shared_f(smem + L::kStateDot + thread * 4, state_dot<L>(smem, thread));
    } else {  // two threads for a channel
      float sum = state_dot<L>(smem, thread / 2, thread % 2, 2);
      sum += __shfl_xor_sync(0xffffffffU, sum, 1);
      if (thread % 2 == 0) ptx::store_shared_f(smem + L::kStateDot + thread * 2, sum);
    }
    ptx::mbarrier_arrive(local_barrier<L>(smem, L::kDotReady));
    // S and D are read by all loaders before one of them sends for those of the next item: that the
    // main warps have freed the tiles says nothing about the loaders.
    ptx::named_sync(kLocalLoadSync + 5 * stream, 128);
    item = next_item;
    at = next;
  }
}

}  // namespace kda::cuda::hopper
