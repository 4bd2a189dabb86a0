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

// Beta or its logit of one token as it lies in memory, and what it means.
__device__ inline std::uint32_t beta_bits(const Tensor& beta, const char* at) {
  if (beta.elem == Elem::kF32) return *reinterpret_cast<const std::uint32_t*>(at);
  return *reinterpret_cast<const std::uint16_t*>(at);
}
__device__ inline float beta_of_bits(const Inputs& in, std::uint32_t bits) {
  const float half = __half2float(__ushort_as_half(static_cast<std::uint16_t>(bits)));
  const float b = in.beta.elem == Elem::kF32    ? __uint_as_float(bits)
                  : in.beta.elem == Elem::kBF16 ? low_of(bits)
                                                : half;
  return in.beta_is_logit ? in.beta_max * sigmoid(b) : b;
}

template <typename C, bool kNorm>
__device__ inline void prep_role(const ChunkArgs& args, std::uint32_t smem, int warp, int lane,
                                 int num_items) {
  constexpr int kChannels = C::kK / 32;
  constexpr unsigned kAll = 0xffffffffU;
  // A register that the compiler cannot read again from the thread's number, which takes long.
  const int kept_lane = __shfl_sync(kAll, lane, lane);
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
          gate_lane<kChannels, C::kStandard>(args.in.gate, w.hv, lane * kChannels, C::kK);
      // Beta is sent for one chunk ahead.
      const Tensor& beta_in = args.in.beta;
      const auto rows_of = [&](int of_step) {
        return of_step < count ? chunk_rows(w, chunk_of_step<C>(w, first + C::kBlocks * of_step))
                               : 0;
      };
      const std::int64_t beta_row = beta_in.s1 * (beta_in.elem == Elem::kF32 ? 4 : 2);
      const std::int64_t t =
          w.span.begin +
          static_cast<std::int64_t>(chunk_of_step<C>(w, first + C::kBlocks * step)) * kChunk +
          lane % 16;
      const char* beta_at =
          static_cast<const char*>(beta_in.data) +
          (w.span.row * beta_in.s0 + w.hv * beta_in.s2) * (beta_in.elem == Elem::kF32 ? 4 : 2) +
          t * beta_row;
      const std::int64_t beta_step =
          (C::kReverse ? -1 : 1) * C::kBlocks * C::kPrepWarps * kChunk * beta_row;
      int next_rows = rows_of(step);
      std::uint32_t next_beta = lane % 16 < next_rows ? beta_bits(beta_in, beta_at) : 0;
      for (; step < count; step += C::kPrepWarps) {
        [[maybe_unused]] const int chunk = chunk_of_step<C>(w, first + C::kBlocks * step);
        // Addresses are made for every chunk: kept over the loop they take the registers that loads
        // ahead of their use need.
        const int lane = static_cast<int>(ptx::forgotten(kept_lane) & 31U);
        // With a zero that the compiler does not know: compared in the uniform unit, each row takes
        // two instructions more.
        const int rows = next_rows + (ptx::forgotten(kept_lane) >> 5);
        const float beta = lane % 16 < rows ? beta_of_bits(args.in, next_beta) : 0.0F;
        next_rows = rows_of(step + C::kPrepWarps);
        beta_at += beta_step;
        next_beta = lane % 16 < next_rows ? beta_bits(beta_in, beta_at) : 0;
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
