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

// A team of loaders sends for a whole chunk, the next team for the next one.
template <typename C>
__device__ inline void load_role(const ChunkArgs& args, std::uint32_t smem, int warp, int lane,
                                 int num_items) {
  constexpr int kTeams = C::kLoaders / C::kLoadThreads;
  constexpr int kRows = C::kLoadThreads / 8;         // at once
  constexpr std::uint32_t kSwap = 16 * (kRows % 8);  // of pieces, kRows on
  constexpr int kWarps = C::kLoadThreads / 32;       // of a team
  const int team = warp / kWarps;
  const int row = 4 * (warp % kWarps) + lane / 8;
  const int piece = lane % 8;
  const std::uint32_t offset = tile_offset(row, piece);
  RingPosition<C::kSlots> at;
  at.parity = 1;  // a new ring is free
  at.advance(team);
  int step = team;  // past the end of an item: of a later one
  for (int item = first_work<C>(); item < num_items; item = next_work<C>(item)) {
    const Work w = work_at<C>(args, item);
    if (step < w.num_chunks) {
      const Inputs& in = args.in;
      const Tensor& values = C::kReverse ? args.d_o : in.v;
      // Steps go down in the reverse scan; rows past the end are not read.
      const std::int64_t first = static_cast<std::int64_t>(chunk_of_step<C>(w, step)) * kChunk;
      constexpr int kSkip = (C::kReverse ? -kTeams : kTeams) * kChunk - kChunk;
      const std::int64_t t = w.span.begin + first + row;
      const int h = w.hv / args.shape.G;
      const auto rows_of = [&](const Tensor& x, int head) {
        return static_cast<const std::uint16_t*>(x.data) + w.span.row * x.s0 + t * x.s1 +
               head * x.s2 + 8 * piece;
      };
      const std::uint16_t* q = rows_of(in.q, h);
      const std::uint16_t* k = rows_of(in.k, h);
      const std::uint16_t* g = rows_of(in.g, w.hv);
      const std::uint16_t* v = rows_of(values, w.hv) + w.v0;
      const bool has_queries = C::kReverse || !w.quiet;
      const bool has_values = !w.is_map && values.data != nullptr;
      for (; step < w.num_chunks; step += kTeams) {
        const int rows = chunk_rows(w, chunk_of_step<C>(w, step));
        ptx::mbarrier_wait(free_barrier<C>(smem, at.slot), at.parity);
        std::uint32_t to = smem + at.slot * C::kSlotBytes + offset;
#pragma unroll 1
        for (int i = row; i < kChunk; i += kRows) {
          const bool valid = i < rows;
#pragma unroll
          for (int half = 0; half < C::kHalves; ++half) {
            const std::uint32_t tile = to + C::kRows + half * C::kRowsHalf;
            load_piece(tile, k + 64 * half, valid);
            if (has_queries) load_piece(tile + kChunk * kRowBytes, q + 64 * half, valid);
            load_piece(to + C::kColumns + half * C::kColumnsHalf, g + 64 * half, valid);
          }
#pragma unroll
          for (int group = 0; group < C::kValueGroups; ++group) {
            load_piece(to + C::kValues + group * C::kValuesHalf, v + 64 * group,
                       valid && has_values && !(C::kEndAndMap && group > 0));
          }
          q += kRows * in.q.s1;
          k += kRows * in.k.s1;
          g += kRows * in.g.s1;
          v += kRows * values.s1;
          to = (to ^ kSwap) + kRows * kRowBytes;
        }
        ptx::cp_async_mbarrier_arrive(loaded_barrier<C>(smem, at.slot));
        at.advance(kTeams);
        q += kSkip * in.q.s1;
        k += kSkip * in.k.s1;
        g += kSkip * in.g.s1;
        v += kSkip * values.s1;
      }
    }
    step -= w.num_chunks;
  }
}

}  // namespace kda::cuda::hopper
