// The loaders of the chunk-local backward: per stream one warpgroup that sends for the operands of
// one item after another; in between it makes the sums that need all warps: sum_v S D of every
// channel, what enters each block of rows from later ones, the shares of the parameters' gradients.
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
__device__ inline void load_units(const ChunkArgs& args, const LocalItem& item, std::uint32_t smem,
                                  int set, int thread) {
  const std::uint32_t to = smem + L::kSets + set * L::kSetBytes;
  const int h = item.hv / args.shape.G;
  load_rows<L>(to + L::kKeys, args.in.k, item, h, thread);
  load_rows<L>(to + L::kQueries, args.in.q, item, h, thread);
}
template <typename L>
__device__ inline void load_gates(const ChunkArgs& args, const LocalItem& item, std::uint32_t smem,
                                  int set, int thread) {
  load_rows<L>(smem + L::kSets + set * L::kSetBytes + L::kColumns, args.in.g, item, item.hv,
               thread);
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

// Threads that share a channel's sums.
template <typename L>
inline constexpr int kChannelThreads = 128 / L::kD;

// sum_v S D of the thread's channel.
template <typename L>
__device__ inline float state_dot(std::uint32_t smem, int thread) {
  constexpr int kThreads = kChannelThreads<L>;
  const int d = thread / kThreads;
  float sum = 0.0F;
#pragma unroll
  for (int value_half = 0; value_half < L::kHalves; ++value_half) {
    const std::uint32_t tile = smem + (d / 64 * L::kHalves + value_half) * L::kTile;
#pragma unroll 2
    for (int piece = thread % kThreads; piece < 8; piece += kThreads) {
      const std::uint32_t at = tile + tile_offset(d % 64, piece);
      const uint4 a = ptx::load_shared(at + L::kStates);
      const uint4 b = ptx::load_shared(at + L::kGradients);
      sum += low_of(a.x) * low_of(b.x) + high_of(a.x) * high_of(b.x);
      sum += low_of(a.y) * low_of(b.y) + high_of(a.y) * high_of(b.y);
      sum += low_of(a.z) * low_of(b.z) + high_of(a.z) * high_of(b.z);
      sum += low_of(a.w) * low_of(b.w) + high_of(a.w) * high_of(b.w);
    }
  }
#pragma unroll
  for (int step = 1; step < kThreads; step *= 2)
    sum += __shfl_xor_sync(0xffffffffU, sum, step);
  return sum;
}

// What enters each block of rows from later ones, of channel `d`, in place of what it takes of the
// end's: dG of the blocks after it, their k dk of the state's product, and at the end sum_v S D.
template <typename L>
__device__ inline void enter_blocks(std::uint32_t smem, int set, int d, float state_dot) {
  const std::uint32_t table = smem + L::kTables + set * L::kTableBytes;
  const std::uint32_t from =
      smem + L::kSets + set * L::kSetBytes + L::kColumns + d / 64 * L::kTile + d % 64 * 4;
  float decay = ptx::load_shared_f(table + L::kEnd + d * 4);
  float of_block[4];
  float sum = 0.0F;
#pragma unroll
  for (int J = 3; J >= 0; --J) {
    const float2 chain =
        pair_floats(ptx::load_shared_pair(table + L::kChain + (J * L::kD + d / 2 * 2) * 2));
    decay *= d % 2 == 0 ? chain.x : chain.y;
    sum += ptx::load_shared_f(from + 2048 * J + 256);
    of_block[J] = ptx::load_shared_f(from + 2048 * J);
  }
  sum = fmaf(decay, state_dot, sum);
#pragma unroll
  for (int J = 3; J >= 0; --J) {
    ptx::store_shared_f(from + 2048 * J + 256, sum);
    sum += of_block[J];
  }
}

// Shares of the parameters' gradients of an item that the main warps have finished.
template <typename L>
__device__ inline void store_shares(const ChunkArgs& args, std::uint32_t smem, int set,
                                    std::uint32_t item, int thread) {
  if (args.dbias_part != nullptr && thread < L::kD) {
    const std::uint32_t from = smem + L::kSets + set * L::kSetBytes + L::kColumns +
                               thread / 64 * L::kTile + thread % 64 * 4;
    args.dbias_part[static_cast<std::int64_t>(item) * L::kD + thread] =
        ptx::load_shared_f(from) + ptx::load_shared_f(from + 2048) +
        ptx::load_shared_f(from + 4096) + ptx::load_shared_f(from + 6144);
  }
  if (args.da_log_part != nullptr && thread == 0) {
    float sum = 0.0F;
#pragma unroll
    for (int x = 0; x < L::kMainWarps; ++x)
      sum += ptx::load_shared_f(smem + L::kLogShares + x * 4);
    args.da_log_part[item] = sum;
  }
}

template <typename L>
__device__ inline void local_load_role(const ChunkArgs& args, std::uint32_t smem, int stream,
                                       int thread, std::uint32_t num_items) {
  const std::uint32_t sync = kLocalLoadSync + 5 * stream;
  std::uint32_t item = first_item<L>(stream);
  LocalItem at;
  if (item < num_items) {
    at = local_item(args, item);
    load_units<L>(args, at, smem, 0, thread);
    load_gates<L>(args, at, smem, 0, thread);
  }
  std::uint32_t n = 0;
  for (; item < num_items; item += item_step<L>(), ++n) {
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
    // The other set: q and k may come once dq and dk of the item before have left, g at its end.
    const bool more = item + item_step<L>() < num_items;
    if (more) at = local_item(args, item + item_step<L>());
    const int set = static_cast<int>(parity);
    ptx::mbarrier_wait(local_barrier<L>(smem, L::kUnitsFree), parity ^ 1U);
    if (more) load_units<L>(args, at, smem, set ^ 1, thread);
    ptx::mbarrier_wait(local_barrier<L>(smem, L::kSetFree + (set ^ 1)), ((n + 1) / 2 & 1U) ^ 1U);
    if (n > 0) {
      store_shares<L>(args, smem, set ^ 1, item - item_step<L>(), thread);
      ptx::named_sync(sync, 128);  // read by all before g takes their place
    }
    if (more) load_gates<L>(args, at, smem, set ^ 1, thread);
    ptx::mbarrier_wait(local_barrier<L>(smem, L::kStatesLoaded), parity);
    ptx::mbarrier_wait(local_barrier<L>(smem, L::kGradientsLoaded), parity);
    const float dot = state_dot<L>(smem, thread);
    ptx::mbarrier_wait(local_barrier<L>(smem, L::kSumsReady), parity);
    if (thread % kChannelThreads<L> == 0)
      enter_blocks<L>(smem, set, thread / kChannelThreads<L>, dot);
    ptx::mbarrier_arrive(local_barrier<L>(smem, L::kEnterReady));
    // S and D are read by all loaders before one of them sends for those of the next item: that the
    // main warps have freed the tiles says nothing about the loaders.
    ptx::named_sync(sync, 128);
  }
  if (n > 0) {  // shares of the last item
    --n;
    ptx::mbarrier_wait(local_barrier<L>(smem, L::kSetFree + n % 2), n / 2 & 1U);
    store_shares<L>(args, smem, static_cast<int>(n % 2), item - item_step<L>(), thread);
  }
}

}  // namespace kda::cuda::hopper
