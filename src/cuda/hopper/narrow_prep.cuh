// Prep of the chunk-local backward for K = V = 64: as in local_prep.cuh, per stream one warpgroup;
// warp w makes all blocks of row w of Lo.
#pragma once

#include "cuda/hopper/local_prep.cuh"
#include "cuda/hopper/narrow_layout.cuh"

namespace kda::cuda::hopper::narrow {

// Lo of block row `warp`: off the diagonal split into high parts at (warp, J) and low parts at
// (J, warp) of the tile of A; the diagonal block is inverted and stored the same way, its low part
// apart.
template <typename L>
__device__ inline void local_blocks(std::uint32_t smem, std::uint32_t set, std::uint32_t table,
                                    float beta, int warp, int lane) {
  const int r = lane / 4;
  const int c = lane % 4;
  const int row = lane % 16;
  std::uint32_t a[4 * L::kHalves][4];
#pragma unroll
  for (int s = 0; s < 4 * L::kHalves; ++s) {
    ptx::ldmatrix(a[s], set + L::kKeys + s / 4 * L::kTile +
                            tile_offset(16 * warp + row, 2 * (s % 4) + lane / 16));
  }
  const float beta_of_row[2] = {__shfl_sync(0xffffffffU, beta, r),
                                __shfl_sync(0xffffffffU, beta, r + 8)};
  const auto product = [&](int J, float(&lo)[2][4]) {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int x = 0; x < 4; ++x)
        lo[t][x] = 0.0F;
    }
#pragma unroll
    for (int s = 0; s < 4 * L::kHalves; ++s) {
      std::uint32_t b[4];
      ptx::ldmatrix(b, set + L::kColumns + s / 4 * L::kTile +
                           tile_offset(16 * J + row, 2 * (s % 4) + lane / 16));
      ptx::mma_bf16(lo[0], a[s], b[0], b[2]);
      ptx::mma_bf16(lo[1], a[s], b[1], b[3]);
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int x = 0; x < 4; ++x)
        lo[t][x] *= beta_of_row[x / 2];
    }
  };
  const std::uint32_t matrix = smem + L::kInverse;
  {
    float lo[2][4];
    product(warp, lo);
    const int j = lane % 16;
    float x[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i)
      x[i] = i == j ? 1.0F : 0.0F;
      // Element (i, m) of the block is in lane 4 (i % 8) + m % 8 / 2. What is above the diagonal
      // may be infinite and is never read.
#pragma unroll
    for (int m = 0; m < kChunk - 1; ++m) {
#pragma unroll
      for (int i = m + 1; i < kChunk; ++i) {
        const float lo_im =
            __shfl_sync(0xffffffffU, lo[m / 8][2 * (i / 8) + m % 2], 4 * (i % 8) + m % 8 / 2);
        x[i] = fmaf(-lo_im, x[m], x[i]);
      }
    }
    const int first = lane / 16 * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float value = lane < 16 ? x[i] : x[i + 8];
      const __nv_bfloat16 high = __float2bfloat16_rn(value);
      const __nv_bfloat16 low = __float2bfloat16_rn(value - __bfloat162float(high));
      ptx::store_shared_half(
          matrix + tile_offset(16 * warp + first + i, 2 * warp + j / 8) + j % 8 * 2,
          __bfloat16_as_ushort(high));
      ptx::store_shared_half(smem + L::kLows + warp * 512 + (first + i) * 32 + j * 2,
                             __bfloat16_as_ushort(low));
    }
  }
#pragma unroll 1
  for (int J = warp - 1; J >= 0; --J) {
    const std::uint32_t chain = table + L::kChain + (J + 1) * L::kD * 2 + 4 * c;
#pragma unroll
    for (int s = 0; s < 4 * L::kHalves; ++s) {
      const std::uint32_t near = ptx::load_shared_pair(chain + 32 * s);
      const std::uint32_t far = ptx::load_shared_pair(chain + 32 * s + 16);
      a[s][0] = times_pair(a[s][0], near);
      a[s][1] = times_pair(a[s][1], near);
      a[s][2] = times_pair(a[s][2], far);
      a[s][3] = times_pair(a[s][3], far);
    }
    float lo[2][4];
    product(J, lo);
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t high;
        std::uint32_t low;
        split_pair(lo[t][2 * half], lo[t][2 * half + 1], &high, &low);
        ptx::store_shared_pair(matrix + tile_offset(16 * warp + r + 8 * half, 2 * J + t) + 4 * c,
                               high);
        ptx::store_shared_pair(matrix + tile_offset(16 * J + r + 8 * half, 2 * warp + t) + 4 * c,
                               low);
      }
    }
  }
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
  for (std::uint32_t turn = first_item<L>(); turn < num_items; turn += item_step<L>()) {
    const std::uint32_t item = turn + stream;
    ptx::named_sync(kLocalPrepsMeet, L::kStreams * 128);
    if (item >= num_items) continue;
    const LocalItem at = local_item(args, item);
    if (at.chunk.length == 0) continue;
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
    local_blocks<L>(smem, set, table, beta, warp, lane);
    ptx::named_sync(sync, 128);  // Lo and the diagonal blocks of A before the merges
    forget();
    local_merge<L>(smem, sync, warp, lane);
    ptx::fence_async_shared();
    __syncwarp();  // every lane's stores and fence before the arrival
    ptx::warp_arrive(local_barrier<L>(smem, L::kSetReady + index), lane);
    ++n;
  }
}

}  // namespace kda::cuda::hopper::narrow
