// The prep warps: each makes one chunk after another ready for the update.
#pragma once

#include <type_traits>

#include "cuda/hopper/prep_exact.cuh"
#include "cuda/ptx/cluster.cuh"

namespace kda::cuda::hopper {

// Sends a finished chunk to the other block's foreign slot once that is free. `at`: its place
// there, with the parity of a wait for the turn before.
template <typename C>
__device__ inline void send_chunk(std::uint32_t smem, std::uint32_t peer, std::uint32_t slot,
                                  std::uint32_t small, const RingPosition<C::kForeign>& at,
                                  int lane) {
  const int to = C::kSlots + at.slot;
  ptx::mbarrier_wait(free_barrier<C>(smem, to), at.parity);
  if (lane == 0) {
    const std::uint32_t ready = ready_barrier<C>(peer, to);
    ptx::mbarrier_expect_mapped(ready, C::kFactorBytes + C::kSmallBytes);
    ptx::bulk_send(peer + to * C::kSlotBytes, slot, C::kFactorBytes, ready);
    ptx::bulk_send(peer + C::kSmall + to * C::kSmallBytes, small, C::kSmallBytes, ready);
  }
}

// Beta (or its logit) as it lies in memory: the loads of a chunk's are sent for a chunk ahead.
__device__ inline std::uint32_t beta_bits(const Tensor& t, std::int64_t offset) {
  if (t.elem == Elem::kF32) return static_cast<const std::uint32_t*>(t.data)[offset];
  return static_cast<const std::uint16_t*>(t.data)[offset];
}
__device__ inline float beta_of_bits(const Inputs& in, std::uint32_t bits) {
  float b;
  if (in.beta.elem == Elem::kF32) {
    b = __uint_as_float(bits);
  } else if (in.beta.elem == Elem::kBF16) {
    b = low_of(bits);
  } else {
    b = __half2float(__ushort_as_half(static_cast<std::uint16_t>(bits)));
  }
  return in.beta_is_logit ? in.beta_max * sigmoid(b) : b;
}

template <typename C, bool kNorm>
__device__ inline void prep_role(const ChunkArgs& args, std::uint32_t smem, int warp, int thread,
                                 int num_items) {
  constexpr int kChannels = C::kK / 32;
  const std::uint32_t scratch = smem + C::kScratch + warp * C::kScratchBytes;
  RingPosition<C::kSlots> at;
  at.advance(warp);
  // In a cluster: the other block, the place there, the first chunk of an item.
  [[maybe_unused]] std::uint32_t peer = 0;
  [[maybe_unused]] RingPosition<C::kCluster ? C::kForeign : 1> there;
  [[maybe_unused]] int turn = 0;
  if constexpr (C::kCluster) {
    peer = ptx::map_shared(smem, static_cast<std::uint32_t>(block_rank<C>() ^ 1));
    there.parity = 1;  // new slots are free
    advance_far(&there, warp);
  }
  int step = warp;  // among the item's chunks that this block makes; past its end: of a later item
  for (int item = first_work<C>(); item < num_items; item = next_work<C>(item)) {
    const Work w = work_at<C>(args, item);
    int first = 0;
    int count = w.num_chunks;
    if constexpr (C::kCluster) {
      const OwnChunks own(block_rank<C>(), turn, w.num_chunks);
      first = own.first;
      count = own.count;
      turn ^= w.num_chunks & 1;
    }
    if (step < count) {
      const GateLane<kChannels> gate =
          gate_lane<kChannels, C::kStandard>(args.in.gate, w.hv, thread * kChannels, C::kK);
      const Tensor& beta_in = args.in.beta;
      const std::int64_t beta_at = w.span.row * beta_in.s0 + w.hv * beta_in.s2;
      const auto ask_beta = [&](int of_step) -> std::uint32_t {
        const int chunk = chunk_of_step<C>(w, first + C::kBlocks * of_step);
        const int j = thread % 16;
        if (of_step >= count || j >= chunk_rows(w, chunk)) return 0;
        const std::int64_t t = w.span.begin + static_cast<std::int64_t>(chunk) * kChunk + j;
        return beta_bits(beta_in, beta_at + t * beta_in.s1);
      };
      std::uint32_t beta_next = ask_beta(step);
      for (; step < count; step += C::kPrepWarps) {
        const int chunk = chunk_of_step<C>(w, first + C::kBlocks * step);
        const int rows = chunk_rows(w, chunk);
        // Addresses are made for every chunk: kept over the loop they take the registers that loads
        // ahead of their use need.
        const int lane = ptx::forgotten(thread);
        const float beta = lane % 16 < rows ? beta_of_bits(args.in, beta_next) : 0.0F;
        beta_next = ask_beta(step + C::kPrepWarps);
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
        if constexpr (C::kCluster) {
          send_chunk<C>(smem, peer, slot, small, there, lane);
          advance_far(&there, C::kPrepWarps);
        }
        at.advance(C::kPrepWarps);
      }
    }
    step -= count;
  }
}

}  // namespace kda::cuda::hopper
