// The prep warps: each makes one chunk after another ready for the update.
#pragma once

#include <type_traits>

#include "cuda/hopper/prep_exact.cuh"

namespace kda::cuda::hopper {

template <typename C, bool kNorm>
__device__ inline void prep_role(const ChunkArgs& args, std::uint32_t smem, int warp, int lane,
                                 int num_items) {
  constexpr int kChannels = C::kK / 32;
  const std::uint32_t scratch = smem + C::kScratch + warp * C::kScratchBytes;
  RingPosition<C::kSlots> at;
  at.advance(warp);
  int step = warp;  // of the current item; past its end: of a later one
  for (int item = static_cast<int>(blockIdx.x); item < num_items; item = next_item(item)) {
    const Work w = work_at<C>(args, item);
    if (step < w.num_chunks) {
      const GateLane<kChannels> gate =
          gate_lane<kChannels, C::kStandard>(args.in.gate, w.hv, lane * kChannels, C::kK);
      const Tensor& beta_in = args.in.beta;
      const std::int64_t beta_at = w.span.row * beta_in.s0 + w.hv * beta_in.s2;
      for (; step < w.num_chunks; step += C::kPrepWarps) {
        const int chunk = chunk_of_step<C>(w, step);
        const int rows = chunk_rows(w, chunk);
        const int j = lane % 16;
        const std::int64_t t = w.span.begin + static_cast<std::int64_t>(chunk) * kChunk + j;
        const float beta = j < rows ? beta_of(args.in, beta_at + t * beta_in.s1) : 0.0F;
        const std::uint32_t slot = smem + at.slot * C::kSlotBytes;
        const std::uint32_t small = smem + C::kSmall + at.slot * C::kSmallBytes;
        ptx::mbarrier_wait(loaded_barrier<C>(smem, at.slot), at.parity);
        const auto prepare = [&](auto queries) {
          constexpr bool kQueries = decltype(queries)::value;
          if constexpr (kNorm) {
            row_norms<C, kQueries>(slot, scratch, lane);
            __syncwarp();  // norms before their readers; raw rows read before they are replaced
          }
          const bool too_much = make_factors<C, kNorm, kQueries>(slot, small, scratch, gate,
                                                                 args.in.scale, rows, lane);
          __syncwarp();  // factors before the products
          if (C::kStandard && too_much) {
            make_exact<C>(args, w, chunk, rows, slot, small, scratch, gate, beta, lane);
          } else {
            make_products<C, kQueries>(slot, small, scratch, beta, lane);
          }
        };
        // Without outputs nothing of q is looked at. (The reverse scan reads qt and N.)
        if (!C::kReverse && w.quiet) {
          prepare(std::false_type{});
        } else {
          prepare(std::true_type{});
        }
        __syncwarp();  // Lo before the inverse
        invert<C>(small, scratch, beta, lane);
        ptx::fence_async_shared();
        __syncwarp();  // every lane's stores and fence before the arrival
        ptx::warp_arrive(ready_barrier<C>(smem, at.slot), lane);
        at.advance(C::kPrepWarps);
      }
    }
    step -= w.num_chunks;
  }
}

}  // namespace kda::cuda::hopper
