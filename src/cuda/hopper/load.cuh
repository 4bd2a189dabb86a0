// The loaders: they send for the raw inputs of one chunk after another.
#pragma once

#include "cuda/hopper/work.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/mbarrier.cuh"

namespace kda::cuda::hopper {

// 16 bytes, or zeros where `valid` is false (nothing is read then).
__device__ inline void load_piece(std::uint32_t to, const std::uint16_t* from, bool valid) {
  ptx::cp_async_or_zero(to, from, valid);
}

template <typename C>
__device__ inline void load_role(const ChunkArgs& args, std::uint32_t smem, int thread,
                                 int num_items) {
  constexpr int kRowsPerPass = C::kLoadThreads / 8;
  constexpr int kPasses = kChunk / kRowsPerPass;
  const int row = thread / 8;
  const int piece = thread % 8;
  const std::uint32_t offset = tile_offset(row, piece);
  RingPosition<C::kSlots> at;
  at.parity = 1;  // a new ring is free
  for (int item = first_work<C>(); item < num_items; item = next_work<C>(item)) {
    const Work w = work_at<C>(args, item);
    const Inputs& in = args.in;
    const Tensor& values = C::kReverse ? args.d_o : in.v;
    // Steps go down in the reverse scan; rows past the end are not read.
    const std::int64_t first = static_cast<std::int64_t>(chunk_of_step<C>(w, 0)) * kChunk;
    constexpr std::int64_t kStep = C::kReverse ? -kChunk : kChunk;
    const std::int64_t t = w.span.begin + first + row;
    const int h = w.hv / args.shape.G;
    const std::uint16_t* q = static_cast<const std::uint16_t*>(in.q.data) + w.span.row * in.q.s0 +
                             t * in.q.s1 + h * in.q.s2 + 8 * piece;
    const std::uint16_t* k = static_cast<const std::uint16_t*>(in.k.data) + w.span.row * in.k.s0 +
                             t * in.k.s1 + h * in.k.s2 + 8 * piece;
    const std::uint16_t* g = static_cast<const std::uint16_t*>(in.g.data) + w.span.row * in.g.s0 +
                             t * in.g.s1 + w.hv * in.g.s2 + 8 * piece;
    const std::uint16_t* v = static_cast<const std::uint16_t*>(values.data) +
                             w.span.row * values.s0 + t * values.s1 + w.hv * values.s2 + w.v0 +
                             8 * piece;
    const bool has_queries = C::kReverse || !w.quiet;
    const bool has_values = !w.is_map && values.data != nullptr;
    for (int step = 0; step < w.num_chunks; ++step) {
      const int rows = chunk_rows(w, chunk_of_step<C>(w, step));
      ptx::mbarrier_wait(free_barrier<C>(smem, at.slot), at.parity);
      const std::uint32_t slot = smem + at.slot * C::kSlotBytes + offset;
#pragma unroll 1
      for (int pass = 0; pass < kPasses; ++pass) {
        const bool valid = row + pass * kRowsPerPass < rows;
        const std::uint32_t to = slot + pass * kRowsPerPass * kRowBytes;
        const std::int64_t on = pass * kRowsPerPass;
#pragma unroll
        for (int half = 0; half < C::kHalves; ++half) {
          const std::uint32_t tile = to + C::kRows + half * C::kRowsHalf;
          load_piece(tile, k + on * in.k.s1 + 64 * half, valid);
          if (has_queries) {
            load_piece(tile + kChunk * kRowBytes, q + on * in.q.s1 + 64 * half, valid);
          }
          load_piece(to + C::kColumns + half * C::kColumnsHalf, g + on * in.g.s1 + 64 * half,
                     valid);
        }
#pragma unroll
        for (int group = 0; group < C::kValueGroups; ++group) {
          load_piece(to + C::kValues + group * C::kValuesHalf, v + on * values.s1 + 64 * group,
                     valid && has_values && !(C::kEndAndMap && group > 0));
        }
      }
      ptx::cp_async_mbarrier_arrive(loaded_barrier<C>(smem, at.slot));
      at.advance(1);
      q += kStep * in.q.s1;
      k += kStep * in.k.s1;
      g += kStep * in.g.s1;
      v += kStep * values.s1;
    }
  }
}

}  // namespace kda::cuda::hopper
