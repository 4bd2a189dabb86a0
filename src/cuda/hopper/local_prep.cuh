// Prep of the chunk-local backward: one warpgroup turns raw q, k, g of a chunk into factors and A.
//
// Warp w has the 16 rows of block w; a lane has 4 (K = 64: 2) neighbouring channels of all of them,
// so decay sums stay in the lane. With G the sum of log2 decays from the chunk's start and A_w the
// nearest integer of G at the block's row 8, l = G - A_w lies within +-58.2 for a bounded gate:
//   q 2^l, k 2^l, k 2^-l       replace q, k, g
//   2^(A_w - A_(w-1))          exact in bf16; links the blocks' frames
//   Lo_IJ = beta_i (k 2^l)_I 2^(A_I - A_J) (k 2^-l)_J,  A = (I + Lo)^-1
// Rows past the end: no decay, q = 0, beta = 0. A component of k below 2^-60 stands as 2^-60: it
// adds nothing, and 2^2l can then be had back from the quotient of the two factors.
#pragma once

#include "cuda/hopper/local_inverse.cuh"
#include "cuda/hopper/local_layout.cuh"
#include "cuda/hopper/prep.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/shared_vector.cuh"
#include "cuda/ptx/warpgroup.cuh"

namespace kda::cuda::hopper {

inline constexpr float kSmallestKey = 8.6736174e-19F;  // 2^-60
inline constexpr float kWidest = 59.0F;                // of |l|, log2

// 1/|k|, 1/|q| of the warp's rows to the table: diagonals of k k^T and q q^T.
template <typename L>
__device__ inline void local_norms(std::uint32_t set, std::uint32_t norms, int warp, int lane) {
  float sums[2][2][4] = {};  // [k, q]
#pragma unroll
  for (int s = 0; s < 4 * L::kHalves; ++s) {
    const std::uint32_t at =
        set + s / 4 * L::kTile + tile_offset(16 * warp + lane % 16, 2 * (s % 4) + lane / 16);
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      std::uint32_t a[4];
      ptx::ldmatrix(a, at + (x == 0 ? L::kKeys : L::kQueries));
      ptx::mma_bf16(sums[x][0], a, a[0], a[2]);
      ptx::mma_bf16(sums[x][1], a, a[1], a[3]);
    }
  }
  const int r = lane / 4;
  if (r / 2 == lane % 4) {
    const bool odd = r % 2 != 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float k = odd ? sums[0][half][2 * half + 1] : sums[0][half][2 * half];
      const float q = odd ? sums[1][half][2 * half + 1] : sums[1][half][2 * half];
      ptx::store_shared_f2(norms + (16 * warp + r + 8 * half) * 8, rsqrtf(k + kNormEps),
                           rsqrtf(q + kNormEps));
    }
  }
}

// Factors in place of the raw values, and the tables of the set, for two of a lane's channels: the
// p-th pair.
// True: they decay so much that the factors are not finite or lose their digits (standard gates).
template <typename L, bool kStandard>
__device__ inline bool local_factors(const GateLane<2 * L::kHalves>& gate, std::uint32_t smem,
                                     std::uint32_t set, std::uint32_t table, std::uint32_t sync,
                                     int length, int warp, int lane, int p) {
  constexpr int kLanes = 32 / L::kHalves;      // of a tile
  constexpr int kPieceLanes = 4 / L::kHalves;  // of 16 bytes
  const std::uint32_t mine = set + lane / kLanes * L::kTile + 16 * warp * kRowBytes +
                             (lane % kPieceLanes) * 4 * L::kHalves + 4 * p;
  const std::uint32_t piece = (lane % kLanes / kPieceLanes) << 4;
  constexpr int kSecond = 2 * (L::kHalves - 1);
  const float offset[2] = {p == 0 ? gate.offset[0] : gate.offset[kSecond],
                           p == 0 ? gate.offset[1] : gate.offset[kSecond + 1]};
  float l[kChunk][2];
  float total[2] = {};
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const std::uint32_t g =
        ptx::load_shared_pair(mine + L::kColumns + i * kRowBytes + (piece ^ ((i & 7) << 4)));
    const float bound = 16 * warp + i < length ? gate.bound : 0.0F;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float x = e == 0 ? low_of(g) : high_of(g);
      total[e] = fmaf(bound, gate_share<kStandard>(x, gate.slope, offset[e]), total[e]);
      l[i][e] = total[e];
    }
  }
  // Sums and middle sums of all blocks, by way of the place of the low parts of A.
  const std::uint32_t sums = smem + L::kLows + lane * 8;
  ptx::store_shared_f2(sums + warp * 512, total[0], total[1]);
  ptx::store_shared_f2(sums + warp * 512 + 256, l[8][0], l[8][1]);
  ptx::named_sync(sync, 128);
  float before[2] = {};
  float last[2] = {};  // A of the block before
#pragma unroll 1
  for (int J = 0; J < warp; ++J) {
    const float2 sum = ptx::load_shared_f2(sums + J * 512);
    const float2 middle = ptx::load_shared_f2(sums + J * 512 + 256);
    last[0] = rintf(before[0] + middle.x);
    last[1] = rintf(before[1] + middle.y);
    before[0] += sum.x;
    before[1] += sum.y;
  }
  ptx::named_sync(sync, 128);  // read, before others take their place
  float shift[2];
  float chain[2];
  float start[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const float anchor = rintf(before[e] + l[8][e]);
    chain[e] = ptx::exp2_approx(anchor - last[e]);
    start[e] = ptx::exp2_approx(anchor);
    shift[e] = before[e] - anchor;
  }
  bool wide = false;
  if constexpr (kStandard) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const bool fits = l[0][e] + shift[e] <= kWidest && l[kChunk - 1][e] + shift[e] >= -kWidest;
      wide |= !fits;
    }
  }
  const std::uint32_t channel = lane * 2 * L::kHalves + 2 * p;
  ptx::store_shared_pair(table + L::kChain + warp * L::kD * 2 + channel * 2,
                         pack_bf16(chain[0], chain[1]));
  ptx::store_shared_pair(table + L::kStart + warp * L::kD * 2 + channel * 2,
                         pack_bf16(start[0], start[1]));
  if (warp == 3) {
    ptx::store_shared_f2(table + L::kEnd + channel * 4, ptx::exp2_approx(total[0] + shift[0]),
                         ptx::exp2_approx(total[1] + shift[1]));
  }
  // Several rows at a time: loads of all before the stores, which the compiler does not reorder.
  constexpr int kRows = 4 * L::kHalves;
#pragma unroll
  for (int first = 0; first < kChunk; first += kRows) {
    std::uint32_t k[kRows];
    std::uint32_t q[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const std::uint32_t at = mine + (first + i) * kRowBytes + (piece ^ (((first + i) & 7) << 4));
      k[i] = ptx::load_shared_pair(at + L::kKeys);
      q[i] = ptx::load_shared_pair(at + L::kQueries);
    }
    std::uint32_t down[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float2 rstd = ptx::load_shared_f2(table + L::kNorms + (16 * warp + first + i) * 8);
      const float unit_k0 = low_of(k[i]) * rstd.x;
      const float unit_k1 = high_of(k[i]) * rstd.x;
      const float l0 = l[first + i][0] + shift[0];
      const float l1 = l[first + i][1] + shift[1];
      const float up0 = ptx::exp2_approx(l0);
      const float up1 = ptx::exp2_approx(l1);
      const float k0 = copysignf(fmaxf(fabsf(unit_k0), kSmallestKey), unit_k0);
      const float k1 = copysignf(fmaxf(fabsf(unit_k1), kSmallestKey), unit_k1);
      q[i] = pack_bf16(low_of(q[i]) * rstd.y * up0, high_of(q[i]) * rstd.y * up1);
      k[i] = pack_bf16(k0 * up0, k1 * up1);
      down[i] = pack_bf16(k0 * ptx::exp2_approx(-l0), k1 * ptx::exp2_approx(-l1));
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const std::uint32_t at = mine + (first + i) * kRowBytes + (piece ^ (((first + i) & 7) << 4));
      ptx::store_shared_pair(at + L::kQueries, q[i]);
      ptx::store_shared_pair(at + L::kKeys, k[i]);
      ptx::store_shared_pair(at + L::kColumns, down[i]);
    }
  }
  return wide;
}

template <typename L, bool kStandard>
__device__ inline void local_prep_role(const ChunkArgs& args, std::uint32_t smem, int stream,
                                       int warp, int lane, std::uint32_t num_items) {
  constexpr int kChannels = 2 * L::kHalves;  // of a lane
  // Addresses made of these are cheap to make again; kept over items, they fill the registers.
  const auto forget = [&] {
    lane = ptx::forgotten(lane);
    smem = ptx::forgotten(smem);
  };
  const std::uint32_t sync = kLocalPrepSync + 5 * stream;
  std::uint32_t n = 0;
  for (std::uint32_t item = first_item<L>(stream); has_turn<L>(item, num_items);
       item += item_step<L>()) {
    meet_streams<L>(kLocalPrepsMeet, 128);
    if (item >= num_items) break;
    const LocalItem at = local_item(args, item);
    forget();
    const int index = static_cast<int>(n & 1U);
    const std::uint32_t set = smem + L::kSets + index * L::kSetBytes;
    const std::uint32_t table = smem + L::kTables + index * L::kTableBytes;
    const GateLane<kChannels> gate =
        gate_lane<kChannels, kStandard>(args.in.gate, at.hv, kChannels * lane, L::kD);
    const int i = 16 * warp + lane % 16;
    const Tensor& beta_in = args.in.beta;
    const float beta =
        i < at.chunk.length
            ? beta_of(args.in, at.chunk.row * beta_in.s0 + (at.chunk.begin + i) * beta_in.s1 +
                                   at.hv * beta_in.s2)
            : 0.0F;
    ptx::mbarrier_wait(local_barrier<L>(smem, L::kRawLoaded + index), n / 2 & 1U);
    if (lane < 16) ptx::store_shared_f(table + L::kBeta + i * 4, beta);
    if (warp == 0 && lane == 0) store_item(table + L::kItem, at);
    local_norms<L>(set, table + L::kNorms, warp, lane);
    __syncwarp();  // norms before their readers; raw rows read before they are replaced
    bool wide = false;
#pragma unroll 1
    for (int p = 0; p < L::kHalves; ++p)
      wide |= local_factors<L, kStandard>(gate, smem, set, table, sync,
                                          ptx::forgotten(at.chunk.length), warp, lane, p);
    if constexpr (kStandard) {  // by the warp's byte of the item's word
      wide = __any_sync(0xffffffffU, wide);
      if (lane == 0) reinterpret_cast<unsigned char*>(args.retry + item)[warp] = wide ? 1 : 0;
    }
    ptx::mbarrier_wait(local_barrier<L>(smem, L::kInverseFree), (n & 1U) ^ 1U);
    ptx::named_sync(sync, 128);  // factors and chains before the products
    forget();
    local_blocks<L>(smem, set, table, warp, lane);
    ptx::named_sync(sync, 128);  // Lo and the diagonal blocks of A before the merges
    forget();
    local_merge<L>(smem, sync, warp, lane);
    ptx::fence_async_shared();
    __syncwarp();  // every lane's stores and fence before the arrival
    ptx::warp_arrive(local_barrier<L>(smem, L::kSetReady + index), lane);
    ++n;
  }
}

}  // namespace kda::cuda::hopper
