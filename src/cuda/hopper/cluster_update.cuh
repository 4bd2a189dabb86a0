// The update of a block that shares the prep of a head: the steps of update.cuh in another order.
//
// With half of the prep per block the update is the limit, one warp per scheduler in a chain of
// products, so all else lies in their shadow: barriers are looked at a step before it has to be,
// decays and values are loaded while U is made, outputs leave while the next chunk's state is.
// Pieces that are run for their end or map leave out everything that outputs need.
#pragma once

#include <type_traits>

#include "cuda/hopper/chain.cuh"
#include "cuda/hopper/consumer.cuh"
#include "cuda/hopper/update.cuh"

namespace kda::cuda::hopper {

template <typename C>
__device__ inline void cluster_update_role(const ChunkArgs& args, std::uint32_t smem, int group,
                                           int warp, int lane, int num_items) {
  constexpr int kHalves = C::kHalves;
  const int r = lane / 4;
  const int c2 = lane % 4 * 2;
  const std::int64_t o_stride = args.o.s1;
  const float scale = args.in.scale;
  const auto [v_at, decay_at, beta_at, rows_at, columns_at, a_at, n_at] =
      operands_of<C>(smem, group, warp, lane);
  Consumer<C> at(smem);
  std::uint32_t snapshots = 0;
  PendingOutput pending;
  float state[kHalves][32];
  std::uint32_t frag[kHalves][4][4];
  // All chunks of an item; without kOut for what they make of the state alone.
  const auto run_chunks = [&](const Work& w, auto with_outputs) {
    constexpr bool kOut = decltype(with_outputs)::value;
    constexpr bool kAhead = C::kValueGroups == 1 || !kOut;  // as registers allow
    const int shown = w.quiet ? 0 : kChunk;                 // rows of an output
    std::uint16_t* o = static_cast<std::uint16_t*>(args.o.data) + w.span.row * args.o.s0 +
                       (w.span.begin + r) * o_stride + w.hv * args.o.s2 + w.v0 + 64 * group +
                       16 * warp + c2;
    // (y | out) of the first chunk. A loop pass ends with those of the next one, so that scaling
    // and rounding the state can hide behind products; after the last chunk they are not used.
    float y[8];
    float out[8];  // -S qt
    std::uint32_t v[4];
    at.begin();
    if (w.num_chunks > 0) at.wait();
    ptx::ldmatrix_trans(v, v_at + at.value_bytes());
    start_values<kOut>(v, y, out);
    float2 beta[2];
    load_beta(beta_at + at.small_bytes(), beta);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      start_rows<kOut>(y, out, frag[half],
                       ptx::advance_descriptor(rows_at, at.slot_bytes() + half * C::kRowsHalf));
    }
    at.plan(w.num_chunks > 1);
    if (w.num_chunks > 0) at.wait_next();
    ptx::wgmma_wait<0>();
    int left = static_cast<int>(w.span.length);  // tokens
    for (int chunk = 0; left > 0; ++chunk, left -= kChunk) {
      const std::uint32_t slot_bytes = at.slot_bytes();
      const std::uint32_t small_bytes = at.small_bytes();
      const auto done = at.done();
      const auto keep_state = [&] {
        if constexpr (C::kSnapshots && kOut) {
          if (chunk % (kBlockTokens / kChunk) == 0 && shown > 0) {
            store_snapshot<C>(smem, group, warp, lane, snapshots++, frag);
          }
        }
      };
      float2 decay[2][8];
      std::uint32_t token_frag[4];
#pragma unroll
      for (int p = 0; p < 4; ++p)
        token_frag[p] = pack_bf16(beta[p / 2].x * y[2 * p], beta[p / 2].y * y[2 * p + 1]);
      float u[8];
      ptx::wgmma_fence();
      ptx::wgmma_set16(u, token_frag, ptx::advance_descriptor(a_at, small_bytes));
      ptx::wgmma_commit();
      // After the last chunk: the same slot again, whose products are not used. (No branch here:
      // the compiler would serialise the products.)
      load_decay(decay_at + small_bytes, decay[0]);
      at.go_on();
      ptx::ldmatrix_trans(v, v_at + at.value_bytes());
      ptx::wgmma_wait<0>();

      pack_tokens(u, token_frag);
      float inner[8];
      ptx::wgmma_fence();
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        ptx::wgmma_add_wide(
            state[half], token_frag,
            ptx::advance_descriptor(columns_at, slot_bytes + half * C::kColumnsHalf));
        if (kOut && half == kHalves - 1)
          ptx::wgmma_set16(inner, token_frag, ptx::advance_descriptor(n_at, small_bytes));
        ptx::wgmma_commit();
      }
      float o_rows[8];
#pragma unroll
      for (int e = 0; e < (kOut ? 8 : 0); ++e)
        o_rows[e] = -scale * out[e];
      if constexpr (kAhead) load_decay(decay_at + small_bytes + kDecayHalf, decay[1]);
      if constexpr (kOut) store_output(pending, o_stride);
      keep_state();
      start_values<kOut>(v, y, out);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        ptx::wgmma_wait<1>();
        decay_half(decay[kAhead ? half : 0], state[half], frag[half]);
        start_rows<kOut>(y, out, frag[half],
                         ptx::advance_descriptor(rows_at, at.slot_bytes() + half * C::kRowsHalf));
        if (!kAhead && half + 1 < kHalves)
          load_decay(decay_at + small_bytes + kDecayHalf, decay[0]);
      }
      load_beta(beta_at + at.small_bytes(), beta);
      at.plan(left > 2 * kChunk);
      at.wait_next();  // before this chunk is freed: its slot may be waited for once more
      done.arrive(lane);
      if constexpr (kOut) {
#pragma unroll
        for (int p = 0; p < 4; ++p)
          pending.frag[p] = pack_bf16(fmaf(scale, inner[2 * p], o_rows[2 * p]),
                                      fmaf(scale, inner[2 * p + 1], o_rows[2 * p + 1]));
        pending.to = o;
        pending.rows = (left < shown ? left : shown) - r;
        o += kChunk * o_stride;
      }
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(y);
      if constexpr (kOut) ptx::wgmma_pin(out);
    }
    if constexpr (kOut) {
      store_output(pending, o_stride);
      pending.rows = 0;
    }
    at.end(w.num_chunks > 0);
  };
  for (int item = first_work<C>(); item < num_items; item = next_work<C>(item)) {
    const Work w = work_at<C>(args, item);
    constexpr bool kMaps = C::kValueGroups > 1;  // for first passes
    if constexpr (kMaps) {
      if (group >= w.groups) {
        follow<C>(&at, lane, w.num_chunks);
        continue;
      }
    }
    const int row = 64 * group + 16 * warp + r;
    wait_chain<C>(args, w, lane);
    load_begin<C>(args, w, args.in.initial_state, w.v0 + row, c2, state);
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
      pack_state<64>(state[half], frag[half]);
    if (kMaps && w.quiet) {
      run_chunks(w, std::bool_constant<!kMaps>{});
    } else {
      run_chunks(w, std::true_type{});
    }
    // The item once more: kept over the loop, it costs registers that the products need.
    const Work again = work_at<C>(args, ptx::forgotten(item));
    store_end<C>(args, again, args.final_state, again.v0 + row, c2, state);
  }
}

}  // namespace kda::cuda::hopper
