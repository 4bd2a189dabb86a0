// Shared memory of the scans, forward and reverse, and who waits for what.
//
// A ring of slots, one 16-token chunk each. A slot goes round: the loaders write raw q, k, g and v
// (in the reverse scan do); one prep warp turns k, q and g in place into the row factors kt, qt and
// the column factor kb; the update warpgroups read them (and v) and free the slot.
//
// With kCluster two blocks share the prep of a head: each makes every other chunk, its own, in
// kSlots slots as above and sends the factors to the other block's kForeign slots, which hold
// nothing else. v, of which each block has its own columns, has a ring of its own.
#pragma once

#include <cstdint>

#include "cuda/args.h"
#include "cuda/tile/swizzle.cuh"

namespace kda::cuda::hopper {

inline constexpr int kChunk = 16;        // tokens per step
inline constexpr int kBlockTokens = 64;  // tokens per state snapshot
inline constexpr int kRowBytes = 128;    // a tile row: 64 channels of 16 bits

// kPrepGroups and kSlots decide how many chunks are under way; registers per thread of all
// warpgroups sum to at most what the launch gives (64 Ki / threads, a multiple of 8) times the
// warpgroups.
template <int kK_, int kValueGroups_, int kPrepGroups_, int kSlots_, int kUpdateRegs_,
          int kPrepRegs_, int kLoadRegs_, bool kSnapshots_, bool kReverse_ = false,
          bool kStandard_ = false, int kForeign_ = 0, int kValueSlots_ = 0>
struct Config {
  static constexpr bool kCluster = kForeign_ > 0;               // two blocks share a head's prep
  static constexpr int kBlocks = kCluster ? 2 : 1;              // per item
  static constexpr bool kStandard = kStandard_;                 // the gate without a lower bound
  static constexpr bool kSnapshots = kSnapshots_ || kReverse_;  // bf16, per 64 tokens
  static constexpr bool kReverse = kReverse_;                   // the reverse scan of the backward
  static constexpr int kK = kK_;                                // channels: 64 or 128
  static constexpr int kValueGroups = kValueGroups_;  // warpgroups of 64 value columns each
  static constexpr int kPrepGroups = kPrepGroups_;
  static constexpr int kSlots = kSlots_;  // own chunks, all without kCluster
  static constexpr int kForeign = kForeign_;
  static constexpr int kAllSlots = kSlots + kForeign;
  static constexpr int kValueSlots = kValueSlots_;
  static constexpr int kUpdateRegs = kUpdateRegs_;
  static constexpr int kPrepRegs = kPrepRegs_;
  static constexpr int kLoadRegs = kLoadRegs_;

  static constexpr int kPrepWarps = 4 * kPrepGroups;
  static constexpr int kThreads = 128 * (kValueGroups + kPrepGroups + 1);
  // Of the last warpgroup, two warps load and two carry snapshots away; without those all load.
  static constexpr int kLoaders = kSnapshots ? 64 : 128;
  // Of these, per chunk: a warp spends less besides the copies, but two warps for themselves have
  // been slower than both together (whole heads with states).
  static constexpr int kLoadThreads =
      kCluster ? kLoaders / 2 : (kSnapshots && kK == 128 ? kLoaders : 32);
  static constexpr int kHalves = kK / 64;
  // First passes over segments of K = 64: one update warpgroup makes the end of a segment, the
  // other its map, from the same factors.
  static constexpr bool kEndAndMap = kK == 64 && kValueGroups == 2;
  // An item has all columns of a head; of a segment in a first pass it has end and map.
  static constexpr bool kJoint = kCluster || kEndAndMap;
  static_assert(kK == 64 || kK == 128);
  static_assert(kPrepWarps <= kSlots);  // a prep warp must not lap the ring
  // A chunk is loaded when that of kSlots turns before is done in both blocks, so its prep warp
  // finds the foreign slot at most one phase behind.
  static_assert(!kCluster || kSlots <= 2 * kForeign);

  // Offsets in a slot. Rows of [kt; qt] alternate per 64 channels: 16 rows kt, 16 rows qt.
  static constexpr int kRows = 0;
  static constexpr int kRowsHalf = 2 * kChunk * kRowBytes;
  static constexpr int kColumns = kHalves * kRowsHalf;
  static constexpr int kColumnsHalf = kChunk * kRowBytes;
  static constexpr int kFactorBytes = kColumns + kHalves * kColumnsHalf;
  static constexpr int kValuesHalf = kChunk * kRowBytes;
  static constexpr int kValueBytes = kValueGroups * kValuesHalf;
  static constexpr int kSlotBytes = kFactorBytes + (kCluster ? 0 : kValueBytes);
  static constexpr int kValueStride = kCluster ? kValueBytes : kSlotBytes;
  // From the start of shared memory to the first values.
  static constexpr int kValues = kCluster ? kAllSlots * kSlotBytes : kFactorBytes;
  static_assert(kSlotBytes % 1024 == 0);

  // Small matrices of a slot as 2x2 cores of 128 bytes: A and N, in the reverse scan A^T and N^T;
  // then, f32, the decay of the chunk and beta of its rows, in the order in which the update's
  // accumulators want them: per lane c of four, all channels 8 t + 2 c, + 1, and rows likewise.
  static constexpr int kA = 0;
  static constexpr int kN = 512;
  static constexpr int kDecay = 1024;
  static constexpr int kBeta = kDecay + kK;    // both of c = 0
  static constexpr int kPairStride = kK + 16;  // from c to c + 1; no bank is met twice
  static constexpr int kSmallBytes = kDecay + 4 * kPairStride;

  // Per prep warp: Lo transposed, f32, rows of 20; then 1/|k|, 1/|q| of the rows.
  static constexpr int kLoStride = 20;
  static constexpr int kNorms = kChunk * kLoStride * 4;
  static constexpr int kScratchBytes = kNorms + kChunk * 8;

  // A snapshot on its way out, per update warpgroup: kK rows of 64 values; padded against bank
  // conflicts.
  static constexpr int kStageRow = 64 * 2 + 16;
  static constexpr int kStageBytes = kSnapshots ? kK * kStageRow : 0;
  // In a joint item with outputs a block has one update warpgroup at work.
  static constexpr int kStageGroups = kJoint ? 1 : kValueGroups;

  static constexpr int kSmall = kAllSlots * kSlotBytes + kValueSlots * kValueBytes;
  static constexpr int kScratch = kSmall + kAllSlots * kSmallBytes;
  static constexpr int kStages = kScratch + kPrepWarps * kScratchBytes;
  static constexpr int kBarriers = kStages + kStageGroups * kStageBytes;
  static constexpr int kValueBarriers = kBarriers + kAllSlots * 24;
  static constexpr int kStageBarriers = kValueBarriers + kValueSlots * 16;
  static constexpr int kSmemBytes = kStageBarriers + (kSnapshots ? kStageGroups * 16 : 0);
  static_assert(kSmemBytes <= 227 * 1024);
};

template <typename C>
__device__ inline std::uint32_t loaded_barrier(std::uint32_t smem, int slot) {
  return smem + C::kBarriers + slot * 24;
}
template <typename C>
__device__ inline std::uint32_t ready_barrier(std::uint32_t smem, int slot) {
  return smem + C::kBarriers + slot * 24 + 8;
}
template <typename C>
__device__ inline std::uint32_t free_barrier(std::uint32_t smem, int slot) {
  return smem + C::kBarriers + slot * 24 + 16;
}

// Values of a chunk in a cluster: loaded, free.
template <typename C>
__device__ inline std::uint32_t values_loaded_barrier(std::uint32_t smem, int slot) {
  return smem + C::kValueBarriers + slot * 16;
}
template <typename C>
__device__ inline std::uint32_t values_free_barrier(std::uint32_t smem, int slot) {
  return smem + C::kValueBarriers + slot * 16 + 8;
}

// The stage of an update warpgroup's snapshots: complete, free.
template <typename C>
__device__ inline std::uint32_t stage_full_barrier(std::uint32_t smem, int group) {
  return smem + C::kStageBarriers + group * 16;
}
template <typename C>
__device__ inline std::uint32_t stage_free_barrier(std::uint32_t smem, int group) {
  return smem + C::kStageBarriers + group * 16 + 8;
}

// Byte offset of 16-byte piece `piece` of row `row` of a tile.
__device__ inline std::uint32_t tile_offset(int row, int piece) {
  return static_cast<std::uint32_t>(row * kRowBytes + ((piece ^ (row & 7)) << 4));
}

// Where the decay of a channel, or beta of a row, lies from kDecay or kBeta on.
template <typename C>
__device__ inline std::uint32_t pair_offset(int index) {
  return static_cast<std::uint32_t>(index / 2 % 4 * C::kPairStride + index / 8 * 8 + index % 2 * 4);
}

// Where a role stands in the ring: `step` chunks after the start of the ring.
template <int kSlots>
struct RingPosition {
  int slot = 0;
  std::uint32_t parity = 0;

  __device__ void advance(int steps) {  // steps <= kSlots
    slot += steps;
    if (slot >= kSlots) {
      slot -= kSlots;
      parity ^= 1U;
    }
  }
};

// More steps than a ring has slots.
template <int kSlots>
__device__ inline void advance_far(RingPosition<kSlots>* at, int steps) {
  for (; steps > kSlots; steps -= kSlots)
    at->parity ^= 1U;
  at->advance(steps);
}

// Of an item's `chunks`, those that this block of a cluster makes: every other from the `first`;
// the turns go on over the items.
struct OwnChunks {
  int first = 0;
  int count = 0;

  __device__ OwnChunks(int rank, int turn, int chunks)
      : first((rank ^ turn) & 1), count((chunks - first + 1) >> 1) {}
};

}  // namespace kda::cuda::hopper
