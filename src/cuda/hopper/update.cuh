// The update: one warpgroup per 64 value columns carries the state through the chunks.
//
// The state is held transposed, S^T [64 values, kK channels], as f32 accumulators of a warpgroup;
// rounded to bf16 they are the A operand of the next products, so it never visits shared memory.
// Per chunk (all transposed, n = tokens):
//   Y = v - S kt,  O = S qt          one pass of products, B = [kt; qt]
//   U = (beta Y) A^T
//   S = decay (S + U kb),  O += U N^T
#pragma once

#include "cuda/hopper/state.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/shared_vector.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/tile/element.cuh"

namespace kda::cuda::hopper {

// Fragments of a [64 values, 16 tokens] product, rounded: the A operand of the next one.
__device__ inline void pack_tokens(const float (&x)[8], std::uint32_t (&frag)[4]) {
#pragma unroll
  for (int p = 0; p < 4; ++p)
    frag[p] = pack_bf16(x[2 * p], x[2 * p + 1]);
}

template <int kK>
__device__ inline void pack_state(const float (&state)[kK / 2], std::uint32_t (&frag)[kK / 16][4]) {
#pragma unroll
  for (int s = 0; s < kK / 16; ++s) {
#pragma unroll
    for (int x = 0; x < 4; ++x)
      frag[s][x] = pack_bf16(state[8 * s + 2 * x], state[8 * s + 2 * x + 1]);
  }
}

// A warp's [16 tokens, 16 values] of a chunk as rows, from rounded fragments of the transposed
// product, by way of the warp's columns of the chunk's values, which it alone reads and has read:
// 16 bytes to a lane. Without bank conflicts, as 8 lanes have 4 rows that are not neighbours.
struct RowOfLane {
  int row = 0;
  int piece = 0;  // 8 values each

  __device__ explicit RowOfLane(int lane)
      : row(lane % 8 / 2 * 2 + lane / 8 % 2 + lane / 16 * 8), piece(lane % 2) {}
};
__device__ inline uint4 rows_of(std::uint32_t fragments_at, std::uint32_t rows_at,
                                const std::uint32_t (&frag)[4]) {
  ptx::stmatrix_trans(fragments_at, frag);
  __syncwarp();
  return ptx::load_shared(rows_at);
}

// Output of one chunk, kept until the products of the next one are under way (clusters).
struct PendingOutput {
  std::uint32_t frag[4];
  std::uint16_t* to = nullptr;  // (token r, value 2c)
  int rows = 0;                 // valid tokens, less r
};

__device__ inline void store_output(const PendingOutput& o, std::int64_t stride) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const std::uint32_t pair = ptx::movmatrix(o.frag[2 * half + x]);
      if (8 * half < o.rows) {
        *reinterpret_cast<std::uint32_t*>(o.to + 8 * half * stride + 8 * x) = pair;
      }
    }
  }
}

// Starts (y | out) -= S [kt; qt] over 64 channels of the chunk at `rows`; y alone without kOut.
template <bool kOut = true>
__device__ inline void start_rows(float (&y)[8], float (&out)[8], const std::uint32_t (&frag)[4][4],
                                  std::uint64_t rows) {
  ptx::wgmma_fence();
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    const std::uint64_t at = ptx::advance_descriptor(rows, 32 * s);
    if constexpr (kOut) {
      ptx::wgmma_subtract_pair(y, out, frag[s], at);
    } else {
      ptx::wgmma_subtract16(y, frag[s], at);
    }
  }
  ptx::wgmma_commit();
}

// Accumulators for the next chunk: y = v^T (as ldmatrix_trans gives it), out = 0.
template <bool kOut = true>
__device__ inline void start_values(const std::uint32_t (&v)[4], float (&y)[8], float (&out)[8]) {
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    y[2 * p] = low_of(v[p]);
    y[2 * p + 1] = high_of(v[p]);
    if constexpr (kOut) out[2 * p] = out[2 * p + 1] = 0.0F;
  }
  ptx::wgmma_pin(y);  // now, not in the shadow of a later wait
  if constexpr (kOut) ptx::wgmma_pin(out);
}

// Beta of a chunk's tokens as this thread's accumulators want it.
__device__ inline void load_beta(std::uint32_t beta, float2 (&x)[2]) {
  const float4 both = ptx::load_shared_f4(beta);
  x[0] = make_float2(both.x, both.y);
  x[1] = make_float2(both.z, both.w);
}

// Decays of 64 channels as this thread's accumulators want them; kDecayHalf on, the next 64.
inline constexpr std::uint32_t kDecayHalf = 64;
__device__ inline void load_decay(std::uint32_t decay, float2 (&x)[8]) {
#pragma unroll
  for (int t = 0; t < 8; t += 2) {
    const float4 both = ptx::load_shared_f4(decay + 8 * t);
    x[t] = make_float2(both.x, both.y);
    x[t + 1] = make_float2(both.z, both.w);
  }
}

// 64 channels of the state: times decay, and rounded for the next products.
__device__ inline void decay_half(const float2 (&decay)[8], float (&state)[32],
                                  std::uint32_t (&frag)[4][4]) {
#pragma unroll
  for (int t = 0; t < 8; ++t) {
    state[4 * t] *= decay[t].x;
    state[4 * t + 1] *= decay[t].y;
    state[4 * t + 2] *= decay[t].x;
    state[4 * t + 3] *= decay[t].y;
  }
  pack_state<64>(state, frag);
}

// Where the update finds what it reads: this lane's addresses, and descriptors, in slot 0; a slot
// further on is an addition. The forward reads kt and qt by rows (n = tokens) and kb by columns
// (n = channels), the reverse scan the other way round.
struct Operands {
  std::uint32_t v_at;  // 8x8 blocks (tokens, values), values second
  std::uint32_t decay_at;
  std::uint32_t beta_at;
  std::uint64_t rows_at;
  std::uint64_t columns_at;
  std::uint64_t a_at;
  std::uint64_t n_at;
};
template <typename C>
__device__ inline Operands operands_of(std::uint32_t smem, int group, int warp, int lane) {
  const int c2 = lane % 4 * 2;
  const int v_row = lane % 8 + 8 * (lane / 16);
  const auto wide = [&](std::uint32_t at, std::uint32_t half, bool by_rows) {
    return ptx::matrix_descriptor(smem + at, by_rows ? 16 : half, 1024, ptx::Swizzle::kRows128);
  };
  const auto cores = [&](std::uint32_t at) {
    return ptx::matrix_descriptor(smem + C::kSmall + at, 128, 256, ptx::Swizzle::kCores);
  };
  return {smem + C::kValues + group * C::kValuesHalf + tile_offset(v_row, 2 * warp + lane / 8 % 2),
          smem + C::kSmall + C::kDecay + pair_offset<C>(c2),
          smem + C::kSmall + C::kBeta + pair_offset<C>(c2),
          wide(C::kRows, C::kRowsHalf, !C::kReverse),
          wide(C::kColumns, C::kColumnsHalf, C::kReverse),
          cores(C::kA),
          cores(C::kN)};
}

// First value column of an update warpgroup.
template <typename C>
__device__ inline int first_column(int group) {
  return C::kEndAndMap ? 0 : 64 * group;
}

// A warpgroup without columns of its own, beside one that has them: frees what that one reads.
template <typename C>
__device__ inline void follow_ring(std::uint32_t smem, int lane, int num_chunks,
                                   RingPosition<C::kSlots>* at) {
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    ptx::mbarrier_wait(ready_barrier<C>(smem, at->slot), at->parity);
    ptx::warp_arrive(free_barrier<C>(smem, at->slot), lane);
    at->advance(1);
  }
}

// quiet_update.cuh: a segment that is run for its end or its map.
template <typename C>
__device__ inline void quiet_update(const Work& w, std::uint32_t smem, int group, int warp,
                                    int lane, RingPosition<C::kSlots>* at, float (&state)[32]);

template <typename C>
__device__ inline void update_role(const ChunkArgs& args, std::uint32_t smem, int group, int warp,
                                   int lane, int num_items) {
  constexpr int kHalves = C::kHalves;
  const int r = lane / 4;
  const int c2 = lane % 4 * 2;
  const RowOfLane mine(lane);
  const std::int64_t o_stride = args.o.s1;
  const float scale = args.in.scale;
  const auto [v_at, decay_at, beta_at, rows_at, columns_at, a_at, n_at] =
      operands_of<C>(smem, group, warp, lane);
  const std::uint32_t o_at =
      smem + C::kValues + group * C::kValuesHalf + tile_offset(mine.row, 2 * warp + mine.piece);
  RingPosition<C::kSlots> at;
  std::uint32_t snapshots = 0;
  float state[kHalves][32];
  std::uint32_t frag[kHalves][4][4];
  for (int item = first_work<C>(); item < num_items; item = next_work<C>(item)) {
    const Work w = update_work<C>(args, item, group);
    if constexpr (C::kEndAndMap) {
      if (!w.quiet && group > 0) {
        follow_ring<C>(smem, lane, w.num_chunks, &at);
        continue;
      }
    }
    const int v_warp = w.v0 + first_column<C>(group) + 16 * warp;
    load_begin<C>(args, w, args.in.initial_state, v_warp + r, c2, state);
    if constexpr (C::kEndAndMap) {
      if (w.quiet) {
        quiet_update<C>(w, smem, group, warp, lane, &at, state[0]);
        store_end<C>(args, update_work<C>(args, ptx::forgotten(item), group), args.final_state,
                     v_warp + r, c2, state);
        continue;
      }
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
      pack_state<64>(state[half], frag[half]);
    const int shown = w.quiet ? 0 : kChunk;  // rows of an output
    std::uint16_t* o = static_cast<std::uint16_t*>(args.o.data) + w.span.row * args.o.s0 +
                       (w.span.begin + mine.row) * o_stride + w.hv * args.o.s2 + v_warp +
                       8 * mine.piece;
    // (y | out) of the first chunk. A loop pass ends with those of the next one, so that scaling
    // and rounding the state can hide behind products; after the last chunk they are not used.
    float y[8];
    float out[8];  // -S qt
    if (w.num_chunks > 0) ptx::mbarrier_wait(ready_barrier<C>(smem, at.slot), at.parity);
    std::uint32_t v[4];
    ptx::ldmatrix_trans(v, v_at + at.slot * C::kSlotBytes);
    start_values(v, y, out);
    float2 beta[2];
    load_beta(beta_at + at.slot * C::kSmallBytes, beta);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      start_rows(y, out, frag[half],
                 ptx::advance_descriptor(rows_at, at.slot * C::kSlotBytes + half * C::kRowsHalf));
    }
    ptx::wgmma_wait<0>();
    int left = static_cast<int>(w.span.length);  // tokens
    for (int chunk = 0; left > 0; ++chunk, left -= kChunk) {
      const std::uint32_t slot_bytes = at.slot * C::kSlotBytes;
      const std::uint32_t small_bytes = at.slot * C::kSmallBytes;
      const std::uint32_t done = free_barrier<C>(smem, at.slot);
      if constexpr (C::kSnapshots) {
        if (chunk % (kBlockTokens / kChunk) == 0 && shown > 0) {
          store_snapshot<C>(smem, group, warp, lane, snapshots++, frag);
        }
      }
      std::uint32_t token_frag[4];
#pragma unroll
      for (int p = 0; p < 4; ++p)
        token_frag[p] = pack_bf16(beta[p / 2].x * y[2 * p], beta[p / 2].y * y[2 * p + 1]);
      float u[8];
      ptx::wgmma_fence();
      ptx::wgmma_set16(u, token_frag, ptx::advance_descriptor(a_at, small_bytes));
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();

      pack_tokens(u, token_frag);
      float inner[8];
      ptx::wgmma_fence();
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        ptx::wgmma_add_wide(
            state[half], token_frag,
            ptx::advance_descriptor(columns_at, slot_bytes + half * C::kColumnsHalf));
        if (half == kHalves - 1)
          ptx::wgmma_set16(inner, token_frag, ptx::advance_descriptor(n_at, small_bytes));
        ptx::wgmma_commit();
      }
      float o_rows[8];
#pragma unroll
      for (int e = 0; e < 8; ++e)
        o_rows[e] = -scale * out[e];
      // After the last chunk: the same slot again, whose products are not used. (No branch here:
      // the compiler would serialise the products.)
      if (left > kChunk) at.advance(1);
      ptx::mbarrier_wait(ready_barrier<C>(smem, at.slot), at.parity);
      ptx::ldmatrix_trans(v, v_at + at.slot * C::kSlotBytes);
      start_values(v, y, out);
      float2 decay[8];
      load_decay(decay_at + small_bytes, decay);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        if constexpr (kHalves > 1) {
          ptx::wgmma_wait<1>();
        } else {
          ptx::wgmma_wait<0>();
        }
        decay_half(decay, state[half], frag[half]);
        start_rows(y, out, frag[half],
                   ptx::advance_descriptor(rows_at, at.slot * C::kSlotBytes + half * C::kRowsHalf));
        if (half + 1 < kHalves) load_decay(decay_at + small_bytes + kDecayHalf, decay);
      }
      load_beta(beta_at + at.slot * C::kSmallBytes, beta);
      std::uint32_t o_frag[4];
#pragma unroll
      for (int p = 0; p < 4; ++p)
        o_frag[p] = pack_bf16(fmaf(scale, inner[2 * p], o_rows[2 * p]),
                              fmaf(scale, inner[2 * p + 1], o_rows[2 * p + 1]));
      const uint4 o_row = rows_of(v_at + slot_bytes, o_at + slot_bytes, o_frag);
      __syncwarp();  // the slot is read before the arrival
      ptx::warp_arrive(done, lane);
      ptx::store_global_if(o, o_row, mine.row < (left < shown ? left : shown));
      o += kChunk * o_stride;
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(y);
      ptx::wgmma_pin(out);
    }
    if (w.num_chunks > 0) at.advance(1);
    // The item once more: kept over the loop, it costs registers that the products need.
    store_end<C>(args, update_work<C>(args, ptx::forgotten(item), group), args.final_state,
                 v_warp + r, c2, state);
  }
}

}  // namespace kda::cuda::hopper
