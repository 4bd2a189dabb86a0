// Shared memory of the chunk-local backward and who waits for what.
//
// Everything large lies in tiles of 64 x 64 16-bit elements: rows of 128 bytes, 16-byte pieces at
// piece ^ (row & 7), the 128-byte swizzle of wgmma. A block works on one (64-token chunk, value
// head) after another; q, k, g of the next one are loaded and turned into factors meanwhile, so
// those tiles exist twice; the others are loaded again as soon as their last product is done.
#pragma once

#include <cuda_bf16.h>

#include "cuda/hopper/layout.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/tile/chunk.cuh"

namespace kda::cuda::hopper {

// K = V = 128: two halves of 64 channels, and of 64 value columns, each with a main warpgroup.
// K = V = 64: one half, and a block works on two items side by side (streams, each with warpgroups
// and shared memory of its own): their warps run through the same code at the same time, so that it
// is fetched once.
template <int kHalves_>
struct LocalLayout {
  static constexpr int kHalves = kHalves_;
  static constexpr int kStreams = 2 / kHalves;
  static constexpr int kThreads = kStreams * 128 * (kHalves + 2);  // warpgroups: main, prep, load
  static constexpr int kMainRegs = kHalves == 2 ? 192 : 144;
  static constexpr int kPrepRegs = kHalves == 2 ? 96 : 72;
  static constexpr int kLoadRegs = kHalves == 2 ? 32 : 24;
  static constexpr bool kSpareRegs = kHalves == 2;  // main: for loads long before their use
  static constexpr int kMainWarps = 4 * kHalves;    // of a stream
  static constexpr int kMainThreads = 32 * kMainWarps;

  static constexpr int kD = 64 * kHalves;
  static constexpr int kTile = 64 * kRowBytes;
  // [channel half][value half] of the states at the chunk's start and their gradients at its end.
  static constexpr int kStates = 0;
  static constexpr int kGradients = kHalves * kHalves * kTile;
  // Per value half: d_o, X, and v, in whose place come Y, U and at last dN (first tile) and P
  // (second tile, which 64 value columns have no other use for).
  static constexpr int kOut = 2 * kGradients;
  static constexpr int kX = kOut + kHalves * kTile;
  static constexpr int kValues = kX + kHalves * kTile;
  static constexpr int kInverse = kValues + 2 * kTile;  // A
  // Two sets of factors per channel half: raw q, k, g and in their place q 2^l, k 2^l, k 2^-l.
  static constexpr int kSets = kInverse + kTile;
  static constexpr int kQueries = 0;
  static constexpr int kKeys = kHalves * kTile;
  static constexpr int kColumns = 2 * kHalves * kTile;
  static constexpr int kSetBytes = 3 * kHalves * kTile;

  // Per set: 2^(A_J - A_(J-1)) and 2^(A_J) as bf16 (exact), 2^(end - A_3), beta, 1/|k| and 1/|q| of
  // the rows.
  static constexpr int kTables = kSets + 2 * kSetBytes;
  static constexpr int kChain = 0;
  static constexpr int kStart = kChain + 4 * kD * 2;
  static constexpr int kEnd = kStart + 4 * kD * 2;
  static constexpr int kBeta = kEnd + kD * 4;
  static constexpr int kNorms = kBeta + 64 * 4;
  static constexpr int kTableBytes = kNorms + 64 * 8;

  // [4][channel half][64]: sums for dbeta of even and of odd turns (the next ones are written while
  // slower warps read), q dq, k dk.
  static constexpr int kRowSums = kTables + 2 * kTableBytes;
  static constexpr int kRowSumBytes = kHalves * 64 * 4;
  static constexpr int kLogShares = kRowSums + 4 * kRowSumBytes;
  static constexpr int kLows = kLogShares + 64;       // low parts of the diagonal blocks of A
  static constexpr int kConstants = kLows + 4 * 512;  // 0, 0, two ones in bf16, 0
  static_assert(kConstants % 16 == 0);
  static constexpr int kBarriers = kConstants + 16;
  static constexpr int kStreamBytes = (kBarriers + 16 * 8 + 1023) / 1024 * 1024;
  static constexpr int kSmemBytes = kStreams * kStreamBytes;
  static_assert(kSmemBytes <= 227 * 1024);

  // Barriers: by index, the sets' ones twice.
  enum Barrier {
    kRawLoaded = 0,     // 128, loaders
    kSetReady = 2,      // 4, prep warps: factors, tables and A
    kSetFree = 4,       // main warps
    kStatesLoaded = 6,  // 128 each, loaders
    kRowsLoaded,        // d_o, X
    kGradientsLoaded,
    kValuesLoaded,
    kEnterReady,  // 128, loaders: what enters each block from later rows
    kTilesFree,   // main warps, all from here on: S, D, d_o, X
    kValuesFree,
    kInverseFree,
    kSumsReady,  // dG of each block, and what enters at the chunk's end
    kUnitsFree,  // the places of q and k of a set
    kNumBarriers
  };
  static_assert(kNumBarriers <= 16);
};

// Named barriers of a stream; 5 more for each stream before it.
inline constexpr std::uint32_t kLocalPrepSync = 1;
inline constexpr std::uint32_t kLocalMainSync = 2;   // all main warps
inline constexpr std::uint32_t kLocalGroupSync = 3;  // + warpgroup
inline constexpr std::uint32_t kLocalLoadSync = 5;
// Of all streams.
inline constexpr std::uint32_t kLocalMainsMeet = 11;
inline constexpr std::uint32_t kLocalPrepsMeet = 12;

template <typename L>
__device__ inline std::uint32_t local_barrier(std::uint32_t smem, int index) {
  return smem + L::kBarriers + index * 8;
}

// Work items, numbered value head first: stream s of block b takes b kStreams + s and every
// (blocks kStreams)-th after it.
template <typename L>
__device__ inline std::uint32_t first_item(int stream) {
  return L::kStreams * blockIdx.x + stream;
}
template <typename L>
__device__ inline std::uint32_t item_step() {
  return L::kStreams * gridDim.x;
}
// Whether one of the block's streams still has an item when this one is at `item`.
template <typename L>
__device__ inline bool has_turn(std::uint32_t item, std::uint32_t num_items) {
  return item / L::kStreams * L::kStreams < num_items;
}
// All streams' warpgroups of a role, of `threads` each, at the start of their items.
template <typename L>
__device__ inline void meet_streams(std::uint32_t barrier, int threads) {
  if constexpr (L::kStreams > 1) ptx::named_sync(barrier, L::kStreams * threads);
}
// Packed calls know only on the device how many there are.
__device__ inline std::uint32_t num_local_items(const ChunkArgs& args, std::uint32_t launched) {
  if (args.map.chunk_seq == nullptr) return launched;
  return static_cast<std::uint32_t>(args.map.first_chunk[args.shape.N]) *
         static_cast<std::uint32_t>(args.shape.HV);
}

// The chunk of a work item. 32-bit divisions.
struct LocalItem {
  Chunk chunk;
  int hv = 0;
};
__device__ inline LocalItem local_item(const ChunkArgs& args, std::uint32_t item) {
  const auto heads = static_cast<std::uint32_t>(args.shape.HV);
  const std::uint32_t c = item / heads;
  LocalItem at;
  at.hv = static_cast<int>(item - c * heads);
  if (args.map.chunk_seq != nullptr) {
    at.chunk = chunk_at(args.map, c);
    return at;
  }
  const auto per_row = static_cast<std::uint32_t>(args.map.per_row);
  const std::uint32_t row = c / per_row;
  at.chunk.row = row;
  at.chunk.begin = static_cast<std::int64_t>(c - row * per_row) * kC;
  const std::int64_t left = args.map.T - at.chunk.begin;
  at.chunk.length = static_cast<int>(left < kC ? left : kC);
  return at;
}

// Powers of two as a bf16 pair: times another, and as floats.
__device__ inline std::uint32_t times_pair(std::uint32_t x, std::uint32_t y) {
  const __nv_bfloat162 z = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&x),
                                   *reinterpret_cast<const __nv_bfloat162*>(&y));
  return *reinterpret_cast<const std::uint32_t*>(&z);
}
__device__ inline float2 pair_floats(std::uint32_t pair) {
  return make_float2(low_of(pair), high_of(pair));
}

}  // namespace kda::cuda::hopper
