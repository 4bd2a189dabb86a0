// The update of the reverse scan: one warpgroup per 64 value columns carries the gradient of the
// state from the last chunk to the first.
//
// D^T [64 values, kK channels] is held like the state in update.cuh. Per chunk, with D the gradient
// at its end (all transposed, n = tokens or channels; qt and N carry `scale` here):
//   D  = decay D
//   dU = D kb + do N,   X = dU A
//   D += do qt - beta X kt
// X = A^T dU and dv = beta X do not depend on how tokens are grouped, so the 64-token stages that
// read X and D (at the ends of 64-token blocks) can follow.
#pragma once

#include "cuda/hopper/update.cuh"

namespace kda::cuda::hopper {

// Starts du (+)= D kb over 64 channels; `columns`: kb of the chunk, rows are tokens.
template <bool kFirst>
__device__ inline void start_columns(float (&du)[8], const std::uint32_t (&frag)[4][4],
                                     std::uint64_t columns) {
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    if (kFirst && s == 0) {
      ptx::wgmma_set16(du, frag[s], columns);
    } else {
      ptx::wgmma_add16(du, frag[s], ptx::advance_descriptor(columns, 32 * s));
    }
  }
}

// A warp's [16 tokens, 16 values] of a chunk on their way to memory, without rows (clusters).
__device__ inline void store_tokens(const std::uint32_t (&frag)[4], std::uint16_t* to,
                                    std::int64_t stride, int rows) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const std::uint32_t pair = ptx::movmatrix(frag[2 * half + x]);
      if (8 * half < rows) {
        *reinterpret_cast<std::uint32_t*>(to + 8 * half * stride + 8 * x) = pair;
      }
    }
  }
}

template <typename C>
__device__ inline void reverse_update_role(const ChunkArgs& args, std::uint32_t smem, int group,
                                           int warp, int lane, int num_items) {
  constexpr int kHalves = C::kHalves;
  constexpr int kSteps = kBlockTokens / kChunk;
  const int r = lane / 4;
  const int c2 = lane % 4 * 2;
  const RowOfLane mine(lane);
  const auto [v_at, decay_at, beta_at, rows_at, columns_at, a_at, n_at] =
      operands_of<C>(smem, group, warp, lane);
  const std::uint32_t rows_of_lane =
      smem + C::kValues + group * C::kValuesHalf + tile_offset(mine.row, 2 * warp + mine.piece);
  RingPosition<C::kSlots> at;
  std::uint32_t snapshots = 0;
  float state[kHalves][32];
  std::uint32_t frag[kHalves][4][4];
  for (int item = first_work<C>(); item < num_items; item = next_work<C>(item)) {
    const Work w = update_work<C>(args, item, group);
    if constexpr (C::kEndAndMap) {
      if (!w.quiet && group > 0) {
        follow_ring<C>(smem, lane, w.num_chunks, &at);
        continue;
      }
    }
    const int v_warp = w.v0 + first_column<C>(group) + 16 * warp;
    load_begin<C>(args, w, args.d_final_state, v_warp + r, c2, state);
    const int num_blocks = w.num_chunks / kSteps;
    // Tokens whose rows leave; none if the item is run for what it makes of a state.
    const int length = w.quiet ? 0 : static_cast<int>(w.span.length);
    const std::int64_t V = args.shape.V;
    for (int block = num_blocks - 1; block >= 0; --block) {
      const std::int64_t tile = w.span.first_chunk + block;
      std::uint16_t* x_to = static_cast<std::uint16_t*>(args.x.data) + tile * args.x.s0 +
                            w.hv * args.x.s1 + mine.row * V + v_warp + 8 * mine.piece;
      std::uint16_t* dv_to =
          static_cast<std::uint16_t*>(args.dv.data) + w.span.row * args.dv.s0 +
          (w.span.begin + static_cast<std::int64_t>(block) * kBlockTokens + mine.row) * args.dv.s1 +
          w.hv * args.dv.s2 + v_warp + 8 * mine.piece;
      ptx::mbarrier_wait(ready_barrier<C>(smem, at.slot), at.parity);
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
        pack_state<64>(state[half], frag[half]);
      if (length > 0) {
        store_snapshot<C>(smem, group, warp, lane, snapshots++, frag);
      }
      float du[8];
      std::uint32_t d_o[4];
      ptx::ldmatrix_trans(d_o, v_at + at.slot * C::kSlotBytes);
      float2 decay[8];
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        load_decay(decay_at + at.slot * C::kSmallBytes + kDecayHalf * half, decay);
        decay_half(decay, state[half], frag[half]);
      }
      ptx::wgmma_fence();
      start_columns<true>(du, frag[0],
                          ptx::advance_descriptor(columns_at, at.slot * C::kSlotBytes));
      if constexpr (kHalves > 1) {
        start_columns<false>(
            du, frag[1],
            ptx::advance_descriptor(columns_at, at.slot * C::kSlotBytes + C::kColumnsHalf));
      }
      ptx::wgmma_add16(du, d_o, ptx::advance_descriptor(n_at, at.slot * C::kSmallBytes));
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(du);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int chunk = kSteps - 1 - step;  // of the block
        const std::uint32_t slot_bytes = at.slot * C::kSlotBytes;
        const std::uint32_t small_bytes = at.slot * C::kSmallBytes;
        const std::uint32_t done = free_barrier<C>(smem, at.slot);
        std::uint32_t token_frag[4];
        pack_tokens(du, token_frag);
        float x[8];
        ptx::wgmma_fence();
        ptx::wgmma_set16(x, token_frag, ptx::advance_descriptor(a_at, small_bytes));
        ptx::wgmma_commit();
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          ptx::wgmma_add_wide(state[half], d_o,
                              ptx::advance_descriptor(
                                  rows_at, slot_bytes + half * C::kRowsHalf + kChunk * kRowBytes));
        }
        ptx::wgmma_commit();
        float2 beta[2];
        load_beta(beta_at + small_bytes, beta);
        ptx::wgmma_wait<1>();
        std::uint32_t x_frag[4];
        pack_tokens(x, x_frag);
        std::uint32_t minus[4];  // -beta X
#pragma unroll
        for (int p = 0; p < 4; ++p) {
          minus[p] = pack_bf16(-beta[p / 2].x * x[2 * p], -beta[p / 2].y * x[2 * p + 1]);
        }
        ptx::wgmma_fence();
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          ptx::wgmma_add_wide(state[half], minus,
                              ptx::advance_descriptor(rows_at, slot_bytes + half * C::kRowsHalf));
          ptx::wgmma_commit();
        }
        at.advance(1);
        if (step + 1 < kSteps) {
          ptx::mbarrier_wait(ready_barrier<C>(smem, at.slot), at.parity);
          const std::uint32_t next = at.slot * C::kSlotBytes;
          const std::uint32_t next_small = at.slot * C::kSmallBytes;
          load_decay(decay_at + next_small, decay);
          ptx::wgmma_wait<kHalves - 1>();
          ptx::ldmatrix_trans(d_o, v_at + next);
          decay_half(decay, state[0], frag[0]);
          ptx::wgmma_fence();
          start_columns<true>(du, frag[0], ptx::advance_descriptor(columns_at, next));
          if constexpr (kHalves > 1) {
            ptx::wgmma_commit();
            load_decay(decay_at + next_small + kDecayHalf, decay);
            ptx::wgmma_wait<1>();
            decay_half(decay, state[1], frag[1]);
            ptx::wgmma_fence();
            start_columns<false>(du, frag[1],
                                 ptx::advance_descriptor(columns_at, next + C::kColumnsHalf));
          }
          ptx::wgmma_add16(du, d_o, ptx::advance_descriptor(n_at, next_small));
          ptx::wgmma_commit();
        } else {
          ptx::wgmma_wait<0>();
        }
        const uint4 x_row = rows_of(v_at + slot_bytes, rows_of_lane + slot_bytes, x_frag);
        const bool has_values = args.dv.data != nullptr;
        uint4 dv_row;
        if (has_values) {
          std::uint32_t dv[4];  // beta X
#pragma unroll
          for (int p = 0; p < 4; ++p)
            dv[p] = minus[p] ^ 0x80008000U;
          __syncwarp();  // X is read
          dv_row = rows_of(v_at + slot_bytes, rows_of_lane + slot_bytes, dv);
        }
        __syncwarp();  // the slot is read before the arrival
        ptx::warp_arrive(done, lane);
        ptx::store_global_if(x_to + chunk * kChunk * V, x_row, length > 0);
        if (has_values) {
          ptx::store_global_if(dv_to + chunk * kChunk * args.dv.s1, dv_row,
                               mine.row < length - (block * kSteps + chunk) * kChunk);
        }
        if (step + 1 < kSteps) {
          ptx::wgmma_wait<0>();
          ptx::wgmma_pin(du);
        }
      }
    }
    store_end<C>(args, update_work<C>(args, ptx::forgotten(item), group), args.d_initial_state,
                 v_warp + r, c2, state);
  }
}

}  // namespace kda::cuda::hopper
