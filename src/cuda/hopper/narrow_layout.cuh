// Shared memory of the chunk-local backward for K = V = 64; what it has in common with that of 128:
// local_layout.cuh.
#pragma once

#include "cuda/hopper/local_layout.cuh"

namespace kda::cuda::hopper::narrow {

// A block works on two items side by side (streams, each with warpgroups and shared memory of its
// own): their warps run through the same code at the same time, so that it is fetched once.
struct NarrowLayout {
  static constexpr int kHalves = 1;
  static constexpr int kStreams = 2;
  static constexpr int kThreads = kStreams * 128 * (kHalves + 2);  // warpgroups: main, prep, load
  static constexpr int kMainRegs = 144;
  static constexpr int kPrepRegs = 72;
  static constexpr int kLoadRegs = 24;
  static constexpr int kMainWarps = 4 * kHalves;
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

  static constexpr int kStateDot = kTables + 2 * kTableBytes;  // sum_v S D, per channel
  static constexpr int kRowSums = kStateDot + kD * 4;          // [3][channel half][64]
  static constexpr int kRowSumBytes = kHalves * 64 * 4;        // of each of the three
  static constexpr int kLogShares = kRowSums + 3 * kRowSumBytes;
  static constexpr int kLows = kLogShares + 64;  // low parts of the diagonal blocks of A
  static constexpr int kBarriers = kLows + 4 * 512;
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
    kDotReady,     // 128, loaders: sum_v S D
    kTilesFree,    // main warps: S, D, d_o, X
    kValuesFree,   // main warps
    kInverseFree,  // main warps
    kNumBarriers
  };
  static_assert(kNumBarriers <= 16);
};

// The main, and the prep, warpgroups of both streams, at the start of every item.
inline constexpr std::uint32_t kLocalMainsMeet = 11;
inline constexpr std::uint32_t kLocalPrepsMeet = 12;

// Where a stream's items start and how far apart they are.
template <typename L>
__device__ inline std::uint32_t first_item() {
  return L::kStreams * blockIdx.x;
}
template <typename L>
__device__ inline std::uint32_t item_step() {
  return L::kStreams * gridDim.x;
}

}  // namespace kda::cuda::hopper::narrow
