// The state between registers and memory: where an item starts, what it leaves, and snapshots.
#pragma once

#include "cuda/hopper/work.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/shared.cuh"

namespace kda::cuda::hopper {

// kFresh: what other blocks of this launch may have written.
template <bool kFresh>
__device__ inline float load_element(const float* at) {
  if constexpr (kFresh) {
    return __ldcg(at);
  } else {
    return __ldg(at);
  }
}

// A thread's part of S^T: values v, v + 8; channels 8 t + 2 c, + 1.
template <bool kFresh>
__device__ inline void load_state(const Tensor& from, std::int64_t at, int v, int c2,
                                  float (&state)[32]) {
#pragma unroll
  for (int t = 0; t < 8; ++t) {
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      state[4 * t + x] =
          from.data == nullptr
              ? 0.0F
              : load_element<kFresh>(static_cast<const float*>(from.data) + at +
                                     (8 * t + c2 + x % 2) * from.s2 + (v + 8 * (x / 2)) * from.s3);
    }
  }
}

// Where a segment starts that is run for its end (zero) or its map (the identity).
__device__ inline void start_segment(bool is_map, int first_channel, int v, int c2,
                                     float (&state)[32]) {
#pragma unroll
  for (int t = 0; t < 8; ++t) {
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const bool one = first_channel + 8 * t + c2 + x % 2 == v + 8 * (x / 2);
      state[4 * t + x] = is_map && one ? 1.0F : 0.0F;
    }
  }
}

__device__ inline void store_state(const Tensor& to, std::int64_t at, int v, int c2,
                                   const float (&state)[32]) {
#pragma unroll
  for (int t = 0; t < 8; ++t) {
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      static_cast<float*>(to.data)[at + (8 * t + c2 + x % 2) * to.s2 + (v + 8 * (x / 2)) * to.s3] =
          state[4 * t + x];
    }
  }
}

// The state that an item starts with: `begin` is that at the sequence's begin in the scan's order.
template <typename C>
__device__ inline void load_begin(const ChunkArgs& args, const Work& w, const Tensor& begin, int v,
                                  int c2, float (&state)[C::kHalves][32]) {
  Tensor from = begin;
  std::int64_t at = w.n * begin.s0 + w.hv * begin.s1;
  if (w.rank > 0) {
    from = segment_matrix(args, args.segments.ends, w.place - args.shape.HV, false);
    at = 0;
  }
#pragma unroll
  for (int half = 0; half < C::kHalves; ++half) {
    if (w.quiet) {
      start_segment(w.is_map, 64 * half, v, c2, state[half]);
    } else {
      load_state<C::kCluster>(from, at + 64 * half * from.s2, v, c2, state[half]);
    }
  }
}

// What an item leaves: the state at the end of the sequence, in a first pass also the end or map of
// a segment.
template <typename C>
__device__ inline void store_end(const ChunkArgs& args, const Work& w, const Tensor& end, int v,
                                 int c2, const float (&state)[C::kHalves][32]) {
  Tensor to = end;
  std::int64_t at = w.n * end.s0 + w.hv * end.s1;
  if (!w.is_last) {
    if (args.segments.pass != 1) return;
    to =
        segment_matrix(args, w.is_map ? args.segments.maps : args.segments.ends, w.place, w.is_map);
    at = 0;
  } else if (end.data == nullptr) {
    return;
  }
#pragma unroll
  for (int half = 0; half < C::kHalves; ++half)
    store_state(to, at + 64 * half * to.s2, v, c2, state[half]);
}

// The rounded state as rows of values, [kK, 64], to the stage from where other warps carry it to
// memory: the update does not wait for them. `count`: snapshots before this one.
template <typename C>
__device__ inline void wait_stage(std::uint32_t smem, int group, std::uint32_t count) {
  ptx::mbarrier_wait(stage_free_barrier<C>(smem, group), (count & 1U) ^ 1U);
}
template <typename C>
__device__ inline void fill_stage(std::uint32_t smem, int group, int warp, int lane,
                                  const std::uint32_t (&frag)[C::kHalves][4][4]) {
  const std::uint32_t stage = smem + C::kStages + group * C::kStageBytes;
  const std::uint32_t mine =
      stage + (lane % 8 + 8 * (lane / 16)) * C::kStageRow + (2 * warp + lane / 8 % 2) * 16;
#pragma unroll
  for (int half = 0; half < C::kHalves; ++half) {
#pragma unroll
    for (int s = 0; s < 4; ++s)
      ptx::stmatrix_trans(mine + (64 * half + 16 * s) * C::kStageRow, frag[half][s]);
  }
  __syncwarp();  // every lane's stores before the arrival
  ptx::warp_arrive(stage_full_barrier<C>(smem, group), lane);
}
template <typename C>
__device__ inline void store_snapshot(std::uint32_t smem, int group, int warp, int lane,
                                      std::uint32_t count,
                                      const std::uint32_t (&frag)[C::kHalves][4][4]) {
  wait_stage<C>(smem, group, count);
  fill_stage<C>(smem, group, warp, lane, frag);
}

// The other side: 64 threads carry one snapshot after another to `to` (the state's [K, V] rows).
template <typename C>
__device__ inline void snapshot_role(const ChunkArgs& args, std::uint32_t smem, int thread,
                                     int num_items) {
  constexpr int kSteps = kBlockTokens / kChunk;
  const Tensor& to = C::kReverse ? args.d_states : args.h;
  std::uint32_t count = 0;
  for (int item = first_work<C>(); item < num_items; item = next_work<C>(item)) {
    const Work w = work_at<C>(args, item);
    const int num_blocks = w.quiet ? 0 : (w.num_chunks + kSteps - 1) / kSteps;
    for (int n = 0; n < num_blocks; ++n, ++count) {
      const std::int64_t tile = w.span.first_chunk + (C::kReverse ? num_blocks - 1 - n : n);
#pragma unroll
      for (int group = 0; group < C::kStageGroups; ++group) {
        const std::int64_t V = args.shape.V;
        std::uint16_t* out = static_cast<std::uint16_t*>(to.data) + tile * to.s0 + w.hv * to.s1 +
                             w.v0 + 64 * group + thread / 8 * V + thread % 8 * 8;
        const std::uint32_t from = smem + C::kStages + group * C::kStageBytes +
                                   thread / 8 * C::kStageRow + thread % 8 * 16;
        ptx::mbarrier_wait(stage_full_barrier<C>(smem, group), count & 1U);
#pragma unroll 2
        for (int row = 0; row < C::kK; row += 8) {
          *reinterpret_cast<uint4*>(out + row * V) = ptx::load_shared(from + row * C::kStageRow);
        }
        __syncwarp();  // the stage is read before the arrival
        ptx::warp_arrive(stage_free_barrier<C>(smem, group), thread % 32);
      }
    }
  }
}

}  // namespace kda::cuda::hopper
