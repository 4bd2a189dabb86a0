// The update of a segment that is run for its end or its map, where one block makes both (K = 64):
// the steps of update.cuh without anything that outputs need.
#pragma once

#include "cuda/hopper/update.cuh"

namespace kda::cuda::hopper {

// Carries `state` through an item whose first chunk is that at `at`, and `at` past it.
template <typename C>
__device__ inline void quiet_update(const Work& w, std::uint32_t smem, int group, int warp,
                                    int lane, RingPosition<C::kSlots>* at, float (&state)[32]) {
  static_assert(C::kHalves == 1);
  const auto [v_at, decay_at, beta_at, rows_at, columns_at, a_at, n_at] =
      operands_of<C>(smem, group, warp, lane);
  std::uint32_t frag[4][4];
  pack_state<64>(state, frag);
  float y[8];
  float none[8];
  std::uint32_t v[4];
  if (w.num_chunks > 0) ptx::mbarrier_wait(ready_barrier<C>(smem, at->slot), at->parity);
  ptx::ldmatrix_trans(v, v_at + at->slot * C::kSlotBytes);
  start_values<false>(v, y, none);
  float2 beta[2];
  load_beta(beta_at + at->slot * C::kSmallBytes, beta);
  start_rows<false>(y, none, frag, ptx::advance_descriptor(rows_at, at->slot * C::kSlotBytes));
  ptx::wgmma_wait<0>();
  for (int left = w.num_chunks; left > 0; --left) {
    const std::uint32_t slot_bytes = at->slot * C::kSlotBytes;
    const std::uint32_t small_bytes = at->slot * C::kSmallBytes;
    const std::uint32_t done = free_barrier<C>(smem, at->slot);
    std::uint32_t token_frag[4];
#pragma unroll
    for (int p = 0; p < 4; ++p)
      token_frag[p] = pack_bf16(beta[p / 2].x * y[2 * p], beta[p / 2].y * y[2 * p + 1]);
    float u[8];
    ptx::wgmma_fence();
    ptx::wgmma_set16(u, token_frag, ptx::advance_descriptor(a_at, small_bytes));
    ptx::wgmma_commit();
    float2 decay[8];
    load_decay(decay_at + small_bytes, decay);
    ptx::wgmma_wait<0>();

    pack_tokens(u, token_frag);
    ptx::wgmma_fence();
    ptx::wgmma_add_wide(state, token_frag, ptx::advance_descriptor(columns_at, slot_bytes));
    ptx::wgmma_commit();
    // After the last chunk: the same slot again, as in update.cuh.
    if (left > 1) at->advance(1);
    ptx::mbarrier_wait(ready_barrier<C>(smem, at->slot), at->parity);
    ptx::ldmatrix_trans(v, v_at + at->slot * C::kSlotBytes);
    start_values<false>(v, y, none);
    ptx::wgmma_wait<0>();
    decay_half(decay, state, frag);
    start_rows<false>(y, none, frag, ptx::advance_descriptor(rows_at, at->slot * C::kSlotBytes));
    load_beta(beta_at + at->slot * C::kSmallBytes, beta);
    __syncwarp();  // the slot is read before the arrival
    ptx::warp_arrive(done, lane);
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(y);
  }
  if (w.num_chunks > 0) at->advance(1);
}

}  // namespace kda::cuda::hopper
