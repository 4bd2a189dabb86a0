// The loaders of a block that shares the prep of a head with another: q, k and g of its own chunks,
// and v (in the reverse scan do) of its own value columns, each in its own warps.
#pragma once

#include "cuda/hopper/load.cuh"

namespace kda::cuda::hopper {

// Rows of the chunk at ring step `step` of an item, from `first` on, `stride` elements apart.
struct ChunkRows {
  const std::uint16_t* at;
  std::int64_t stride;

  __device__ ChunkRows(const Tensor& t, const Work& w, int head, int first, int column)
      : at(static_cast<const std::uint16_t*>(t.data) + w.span.row * t.s0 +
           (w.span.begin + first) * t.s1 + head * t.s2 + column),
        stride(t.s1) {}
  __device__ const std::uint16_t* row(int i) const { return at + i * stride; }
};

template <typename C>
__device__ inline void load_keys_role(const ChunkArgs& args, std::uint32_t smem, int thread,
                                      int num_items) {
  constexpr int kRowsPerPass = C::kLoadThreads / 8;
  const int row = thread / 8;
  const int piece = thread % 8;
  RingPosition<C::kSlots> at;
  at.parity = 1;  // a new ring is free
  int turn = 0;
  for (int item = first_work<C>(); item < num_items; item = next_work<C>(item)) {
    const Work w = work_at<C>(args, item);
    const OwnChunks own(block_rank<C>(), turn, w.num_chunks);
    turn ^= w.num_chunks & 1;
    const Inputs& in = args.in;
    const int h = w.hv / args.shape.G;
    const bool has_queries = C::kReverse || !w.quiet;
    // Steps go down in the reverse scan; rows past the end are not read.
    const int start = chunk_of_step<C>(w, own.first) * kChunk;
    ChunkRows q(in.q, w, h, start + row, 8 * piece);
    ChunkRows k(in.k, w, h, start + row, 8 * piece);
    ChunkRows g(in.g, w, w.hv, start + row, 8 * piece);
    constexpr int kStep = C::kReverse ? -2 * kChunk : 2 * kChunk;
    for (int i = 0; i < own.count; ++i) {
      const int rows = chunk_rows(w, chunk_of_step<C>(w, own.first + 2 * i));
      ptx::mbarrier_wait(free_barrier<C>(smem, at.slot), at.parity);
      const std::uint32_t slot = smem + at.slot * C::kSlotBytes + tile_offset(row, piece);
#pragma unroll 2
      for (int on = 0; on < kChunk; on += kRowsPerPass) {
        const bool valid = row + on < rows;
        // 4 rows further the pieces are permuted otherwise; 8 or more, as before.
        const std::uint32_t to =
            kRowsPerPass % 8 == 0 ? slot + on * kRowBytes
                                  : smem + at.slot * C::kSlotBytes + tile_offset(row + on, piece);
#pragma unroll
        for (int half = 0; half < C::kHalves; ++half) {
          const std::uint32_t tile = to + C::kRows + half * C::kRowsHalf;
          load_piece(tile, k.row(on) + 64 * half, valid);
          if (has_queries) load_piece(tile + kChunk * kRowBytes, q.row(on) + 64 * half, valid);
          load_piece(to + C::kColumns + half * C::kColumnsHalf, g.row(on) + 64 * half, valid);
        }
      }
      ptx::cp_async_mbarrier_arrive(loaded_barrier<C>(smem, at.slot));
      at.advance(1);
      q.at += kStep * q.stride;
      k.at += kStep * k.stride;
      g.at += kStep * g.stride;
    }
  }
}

template <typename C>
__device__ inline void load_values_role(const ChunkArgs& args, std::uint32_t smem, int thread,
                                        int num_items) {
  constexpr int kRowsPerPass = C::kLoadThreads / 8;
  const int row = thread / 8;
  const int piece = thread % 8;
  const Tensor& values = C::kReverse ? args.d_o : args.in.v;
  RingPosition<C::kValueSlots> at;
  at.parity = 1;  // a new ring is free
  for (int item = first_work<C>(); item < num_items; item = next_work<C>(item)) {
    const Work w = work_at<C>(args, item);
    const bool has_values = !w.is_map && values.data != nullptr;
    ChunkRows v(values, w, w.hv, chunk_of_step<C>(w, 0) * kChunk + row, w.v0 + 8 * piece);
    constexpr int kStep = C::kReverse ? -kChunk : kChunk;
    for (int step = 0; step < w.num_chunks; ++step) {
      const int rows = has_values ? chunk_rows(w, chunk_of_step<C>(w, step)) : 0;
      ptx::mbarrier_wait(values_free_barrier<C>(smem, at.slot), at.parity);
      const std::uint32_t slot = smem + C::kValues + at.slot * C::kValueBytes;
#pragma unroll 2
      for (int on = 0; on < kChunk; on += kRowsPerPass) {
#pragma unroll
        for (int group = 0; group < C::kValueGroups; ++group) {
          if (group < w.groups) {
            load_piece(slot + group * C::kValuesHalf + tile_offset(row + on, piece),
                       v.row(on) + 64 * group, row + on < rows);
          }
        }
      }
      ptx::cp_async_mbarrier_arrive(values_loaded_barrier<C>(smem, at.slot));
      at.advance(1);
      v.at += kStep * v.stride;
    }
  }
}

}  // namespace kda::cuda::hopper
