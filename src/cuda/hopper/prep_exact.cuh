// A chunk that decays so much that 2^-G is not finite: possible with a standard gate, which has no
// bound. Rare, so made to be right, at some three times the cost of the usual prep.
//
// Decays are cut off at 2^-200 per token: what passes such a token is nothing either way, and G
// keeps its digits. Products of pairs take 2^(G_i - G_j) <= 1 element by element. For the state
//   decay = 2^max(G_last, -100),  kb = k 2^(G_last - G - max(G_last, -100)),
// so that decay kb is exact, kb at most 2^100 |k|, and an old state fades by 2^-100 where it should
// by more.
#pragma once

#include "cuda/hopper/prep.cuh"

namespace kda::cuda::hopper {

// The lane's channels of raw q, k, g, from memory into the slot once more: factors have taken their
// place.
template <typename C>
__device__ inline void reload_rows(const ChunkArgs& args, const Work& w, int chunk, int rows,
                                   const LaneTiles& tiles, int lane) {
  constexpr int kWords = C::kK / 64;
  const int h = w.hv / args.shape.G;
  const std::int64_t t0 = w.span.begin + static_cast<std::int64_t>(chunk) * kChunk;
  const auto move = [&](const Tensor& from, int head, int i, std::uint32_t to) {
    std::uint32_t x[kWords] = {};
    if (i < rows) {
      const auto* words = reinterpret_cast<const std::uint32_t*>(
          static_cast<const std::uint16_t*>(from.data) + w.span.row * from.s0 + (t0 + i) * from.s1 +
          head * from.s2 + lane * 2 * kWords);
#pragma unroll
      for (int p = 0; p < kWords; ++p)
        x[p] = __ldg(words + p);
    }
    ptx::store_shared_words(to, x);
  };
#pragma unroll 1
  for (int i = 0; i < kChunk; ++i) {
    move(args.in.k, h, i, tiles.keys(i));
    move(args.in.q, h, i, tiles.queries(i));
    move(args.in.g, w.hv, i, tiles.columns(i));
  }
}

// Factors, N and Lo (transposed, to the scratch) of such a chunk.
template <typename C>
__device__ inline void make_exact(const ChunkArgs& args, const Work& w, int chunk, int rows,
                                  std::uint32_t slot, std::uint32_t small, std::uint32_t scratch,
                                  const GateLane<C::kK / 32>& gate, float beta, int lane) {
  constexpr int kChannels = C::kK / 32;
  const LaneTiles tiles = lane_tiles<C>(slot, lane);
  reload_rows<C>(args, w, chunk, rows, tiles, lane);
  const float q_scale = C::kReverse ? args.in.scale : 1.0F;  // the forward scales its output
  float sums[kChunk][kChannels];                             // indexed at run time: in memory
  float sum[kChannels] = {};
#pragma unroll 1
  for (int i = 0; i < kChunk; ++i) {
    std::uint32_t g[kChannels / 2];
    ptx::load_shared_words(tiles.columns(i), g);
    const float bound = i < rows ? gate.bound : 0.0F;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const float x = c % 2 == 0 ? low_of(g[c / 2]) : high_of(g[c / 2]);
      const float share = gate_share<C::kStandard>(x, gate.slope, gate.offset[c]);
      sum[c] += fmaxf(bound * share, -200.0F);
      sums[i][c] = sum[c];
    }
  }
  const auto row = [&](std::uint32_t at, float rstd, float(&x)[kChannels]) {
    std::uint32_t words[kChannels / 2];
    ptx::load_shared_words(at, words);
#pragma unroll
    for (int p = 0; p < kChannels / 2; ++p) {
      x[2 * p] = low_of(words[p]) * rstd;
      x[2 * p + 1] = high_of(words[p]) * rstd;
    }
  };
  const auto norms = [&](int i) { return ptx::load_shared_f2(scratch + C::kNorms + i * 8); };
  ptx::store_shared(small + C::kN + lane * 16, make_uint4(0, 0, 0, 0));
  __syncwarp();  // zeros before what is below the diagonal
#pragma unroll 1
  for (int i = 0; i < kChunk; ++i) {
    float k[kChannels];
    float q[kChannels];
    row(tiles.keys(i), norms(i).x, k);
    row(tiles.queries(i), norms(i).y, q);
    const float beta_i = __shfl_sync(0xffffffffU, beta, i);
#pragma unroll 1
    for (int j = 0; j <= i; ++j) {
      float other[kChannels];
      row(tiles.keys(j), norms(j).x, other);
      float n = 0.0F;
      float lo = 0.0F;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        const float faded = other[c] * ptx::exp2_approx(sums[i][c] - sums[j][c]);
        n = fmaf(q[c], faded, n);
        lo = fmaf(k[c], faded, lo);
      }
      n = warp_sum(n) * q_scale;
      lo = warp_sum(lo) * beta_i;
      if (lane == 0) {
        const int row_of = C::kReverse ? j : i;  // the reverse scan takes N transposed
        const int column = C::kReverse ? i : j;
        ptx::store_shared_half(small + C::kN + (2 * (row_of / 8) + column / 8) * 128 +
                                   row_of % 8 * 16 + column % 8 * 2,
                               __bfloat16_as_ushort(__float2bfloat16_rn(n)));
        if (i > j) ptx::store_shared_f(scratch + (j * C::kLoStride + i) * 4, lo);
      }
    }
  }
#pragma unroll 1
  for (int i = 0; i < kChunk; ++i) {
    float k[kChannels];
    float q[kChannels];
    row(tiles.keys(i), norms(i).x, k);
    row(tiles.queries(i), norms(i).y, q);
    std::uint32_t kt[kChannels / 2];
    std::uint32_t qt[kChannels / 2];
    std::uint32_t kb[kChannels / 2];
#pragma unroll
    for (int p = 0; p < kChannels / 2; ++p) {
      float up[2];
      float down[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float G = sums[i][2 * p + e];
        const float last = sum[2 * p + e];
        up[e] = ptx::exp2_approx(G);
        down[e] = ptx::exp2_approx(fminf(last + 100.0F, 0.0F) - G);
      }
      kt[p] = pack_bf16(k[2 * p] * up[0], k[2 * p + 1] * up[1]);
      qt[p] = pack_bf16(q[2 * p] * (q_scale * up[0]), q[2 * p + 1] * (q_scale * up[1]));
      kb[p] = pack_bf16(k[2 * p] * down[0], k[2 * p + 1] * down[1]);
    }
    ptx::store_shared_words(tiles.keys(i), kt);
    ptx::store_shared_words(tiles.queries(i), qt);
    ptx::store_shared_words(tiles.columns(i), kb);
  }
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    ptx::store_shared_f(small + C::kDecay + pair_offset<C>(lane * kChannels + c),
                        ptx::exp2_approx(fmaxf(sum[c], -100.0F)));
  }
}

}  // namespace kda::cuda::hopper
