// The update of the reverse scan in a block that shares the prep of a head: the steps of
// reverse_update.cuh, ordered as in cluster_update.cuh.
#pragma once

#include "cuda/hopper/chain.cuh"
#include "cuda/hopper/consumer.cuh"
#include "cuda/hopper/reverse_update.cuh"

namespace kda::cuda::hopper {

template <typename C>
__device__ inline void cluster_reverse_role(const ChunkArgs& args, std::uint32_t smem, int group,
                                            int warp, int lane, int num_items) {
  constexpr int kHalves = C::kHalves;
  constexpr int kSteps = kBlockTokens / kChunk;
  const int r = lane / 4;
  const int c2 = lane % 4 * 2;
  const auto [v_at, decay_at, beta_at, rows_at, columns_at, a_at, n_at] =
      operands_of<C>(smem, group, warp, lane);
  Consumer<C> at(smem);
  std::uint32_t snapshots = 0;
  float state[kHalves][32];
  std::uint32_t frag[kHalves][4][4];
  for (int item = first_work<C>(); item < num_items; item = next_work<C>(item)) {
    const Work w = work_at<C>(args, item);
    if constexpr (C::kValueGroups > 1) {
      if (group >= w.groups) {
        follow<C>(&at, lane, w.num_chunks);
        continue;
      }
    }
    const int v_warp = w.v0 + 64 * group + 16 * warp;
    wait_chain<C>(args, w, lane);
    load_begin<C>(args, w, args.d_final_state, v_warp + r, c2, state);
    const int num_blocks = w.num_chunks / kSteps;
    // Rows of X and of dv (less r) that leave; none if the item is run for what it makes of a
    // state.
    const int x_rows = w.quiet ? 0 : kBlockTokens;
    const bool has_dv = !w.quiet && args.dv.data != nullptr;
    int dv_rows =
        has_dv ? static_cast<int>(w.span.length) - (num_blocks - 1) * kBlockTokens - r : 0;
    const std::int64_t V = args.shape.V;
    std::uint32_t d_o[2][4];  // of this chunk and of the next one
    float2 decay[2][8];
    // What the next chunk needs before its products.
    const auto meet = [&](int which) {
      ptx::ldmatrix_trans(d_o[which], v_at + at.value_bytes());
      load_decay(decay_at + at.small_bytes(), decay[0]);
      load_decay(decay_at + at.small_bytes() + kDecayHalf, decay[1]);
    };
    // Starts dU of the chunk `at` once all products but the last `kHalves - 1` groups are done.
    const auto start_chunk = [&](float(&du)[8], int which) {
      decay_half(decay[0], state[0], frag[0]);
      ptx::wgmma_fence();
      start_columns<true>(du, frag[0], ptx::advance_descriptor(columns_at, at.slot_bytes()));
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      decay_half(decay[1], state[1], frag[1]);
      ptx::wgmma_fence();
      start_columns<false>(du, frag[1],
                           ptx::advance_descriptor(columns_at, at.slot_bytes() + C::kColumnsHalf));
      ptx::wgmma_add16(du, d_o[which], ptx::advance_descriptor(n_at, at.small_bytes()));
      ptx::wgmma_commit();
    };
    at.begin();
    if (num_blocks > 0) {
      at.wait();
      meet(0);
      at.plan(true);
      at.wait_next();
      if (x_rows > 0) wait_stage<C>(smem, group, snapshots);
    }
    for (int block = num_blocks - 1; block >= 0; --block) {
      const std::int64_t tile = w.span.first_chunk + block;
      std::uint16_t* x_to = static_cast<std::uint16_t*>(args.x.data) + tile * args.x.s0 +
                            w.hv * args.x.s1 + r * V + v_warp + c2;
      std::uint16_t* dv_to =
          static_cast<std::uint16_t*>(args.dv.data) + w.span.row * args.dv.s0 +
          (w.span.begin + static_cast<std::int64_t>(block) * kBlockTokens + r) * args.dv.s1 +
          w.hv * args.dv.s2 + v_warp + c2;
      if (x_rows > 0) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half)
          pack_state<64>(state[half], frag[half]);
        fill_stage<C>(smem, group, warp, lane, frag);
        ++snapshots;
      }
      float du[8];
      start_chunk(du, 0);
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(du);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int chunk = kSteps - 1 - step;  // of the block
        const bool block_ends = step + 1 == kSteps;
        const std::uint32_t slot_bytes = at.slot_bytes();
        const std::uint32_t small_bytes = at.small_bytes();
        const auto done = at.done();
        std::uint32_t token_frag[4];
        pack_tokens(du, token_frag);
        float x[8];
        ptx::wgmma_fence();
        ptx::wgmma_set16(x, token_frag, ptx::advance_descriptor(a_at, small_bytes));
        ptx::wgmma_commit();
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          ptx::wgmma_add_wide(state[half], d_o[step % 2],
                              ptx::advance_descriptor(
                                  rows_at, slot_bytes + half * C::kRowsHalf + kChunk * kRowBytes));
        }
        ptx::wgmma_commit();
        float2 beta[2];
        load_beta(beta_at + small_bytes, beta);
        at.go_on();
        meet((step + 1) % 2);
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
        store_tokens(x_frag, x_to + chunk * kChunk * V, V, x_rows);
        std::uint32_t dv[4];  // beta X
#pragma unroll
        for (int p = 0; p < 4; ++p)
          dv[p] = minus[p] ^ 0x80008000U;
        store_tokens(dv, dv_to + chunk * kChunk * args.dv.s1, args.dv.s1,
                     min(dv_rows - chunk * kChunk, kChunk - r));
        if (!block_ends) {
          ptx::wgmma_wait<kHalves - 1>();
          start_chunk(du, (step + 1) % 2);
        } else {
          if (x_rows > 0 && block > 0) wait_stage<C>(smem, group, snapshots);
          ptx::wgmma_wait<0>();
        }
        // The chunk after the next; before this one is freed.
        at.plan(step + 2 < kSteps || block > 0);
        at.wait_next();
        done.arrive(lane);
        if (!block_ends) {
          ptx::wgmma_wait<0>();
          ptx::wgmma_pin(du);
        }
      }
      dv_rows = has_dv ? kBlockTokens - r : 0;
    }
    at.end(num_blocks > 0);
    store_end<C>(args, work_at<C>(args, ptx::forgotten(item)), args.d_initial_state, v_warp + r, c2,
                 state);
  }
}

}  // namespace kda::cuda::hopper
