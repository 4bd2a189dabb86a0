// The main warpgroups of the chunk-local backward for K = V = 64, one per stream: as in
// local_main.cuh, with both of dN and P made by the one warpgroup, and with every sum made by
// itself.
#pragma once

#include "cuda/hopper/local_main.cuh"
#include "cuda/hopper/narrow_prep.cuh"

namespace kda::cuda::hopper::narrow {

// x [16 rows] -> its sums from the last row up, by a product with a triangle of ones. Three bf16
// terms hold an f32: what enters at the chunk's end and what its last token takes of it may be
// e^5 times larger than their difference, which all tokens of the chunk have in common.
__device__ inline void sums_from_end(float (&x)[32], int r, int c) {
  const std::uint32_t one_low = 2 * c >= r ? 0x3f80U : 0U;
  const std::uint32_t one_high = 2 * c + 1 >= r ? 0x3f800000U : 0U;
  const std::uint32_t triangle = one_low | one_high;
  const std::uint32_t ones[4] = {triangle, 0U, 0x3f803f80U, triangle};
#pragma unroll
  for (int first = 0; first < 8; first += 4) {  // four at a time, for their latencies
    float sum[4][4] = {};
#pragma unroll
    for (int n = 0; n < 3; ++n) {
      std::uint32_t term[4][2];
#pragma unroll
      for (int t = 0; t < 4; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* pair = x + 4 * (first + t) + 2 * half;
          const std::uint32_t rounded = pack_bf16(pair[0], pair[1]);
          pair[0] -= low_of(rounded);
          pair[1] -= high_of(rounded);
          term[t][half] = ptx::movmatrix(rounded);
        }
      }
#pragma unroll
      for (int t = 0; t < 4; ++t)
        ptx::mma_bf16(sum[t], ones, term[t][0], term[t][1]);
    }
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        x[4 * (first + t) + e] = sum[t][e];
    }
  }
}

// acc *= the frame factor of each channel (times `factor`), of all rows; or of the two rows apart.
__device__ inline void change_frame(std::uint32_t chain, float (&acc)[32], float first,
                                    float second) {
#pragma unroll
  for (int t = 0; t < 8; ++t) {
    const float2 x = pair_floats(ptx::load_shared_pair(chain + 16 * t));
    acc[4 * t] *= x.x * first;
    acc[4 * t + 1] *= x.y * first;
    acc[4 * t + 2] *= x.x * second;
    acc[4 * t + 3] *= x.y * second;
  }
}
__device__ inline void change_frame(std::uint32_t chain, float (&acc)[32], float factor = 1.0F) {
#pragma unroll
  for (int t = 0; t < 8; ++t) {
    float2 x = pair_floats(ptx::load_shared_pair(chain + 16 * t));
    x.x *= factor;
    x.y *= factor;
    acc[4 * t] *= x.x;
    acc[4 * t + 1] *= x.y;
    acc[4 * t + 2] *= x.x;
    acc[4 * t + 3] *= x.y;
  }
}

// [16 rows, 64 channels] words of a warp to rows of memory, by way of the warp's rows of a tile.
__device__ inline void store_rows(const std::uint32_t (&words)[2][8], std::uint32_t tile, int warp,
                                  int lane, std::uint16_t* to, std::int64_t stride, int rows) {
  __syncwarp();  // what was there has been read
#pragma unroll
  for (int t = 0; t < 8; t += 2) {
    const std::uint32_t x[4] = {words[0][t], words[1][t], words[0][t + 1], words[1][t + 1]};
    ptx::stmatrix(tile + tile_offset(16 * warp + lane % 16, t + lane / 16), x);
  }
  __syncwarp();  // rows before their readers
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const int row = 16 * warp + 4 * part + lane / 8;
    const uint4 x = ptx::load_shared(tile + tile_offset(row, lane % 8));
    if (row < rows) *reinterpret_cast<uint4*>(to + row * stride + lane % 8 * 8) = x;
  }
}

template <typename L, bool kGrouped, bool kStandard>
__device__ inline void local_main_role(const ChunkArgs& args, std::uint32_t base, int stream, int g,
                                       int w, int lane, std::uint32_t num_items) {
  const int r = lane / 4;
  const int c = lane % 4;
  const int i0 = 16 * w + r;
  const Inputs& in = args.in;
  const std::uint32_t main_sync = kLocalMainSync + 5 * stream;
  const std::uint32_t group_sync = kLocalGroupSync + 5 * stream + g;
  // The thread's word of row i0, piece t of a tile: pair ^ 16 t; eight rows on: + 1024.
  // Addresses and descriptors made of `smem` are cheap to make again; kept, they fill the
  // registers.
  std::uint32_t smem = base;
  std::uint32_t pair = smem + tile_offset(i0, 0) + 4 * c;
  const auto forget = [&] {
    smem = ptx::forgotten(smem);
    pair = ptx::forgotten(pair);
  };
  const auto word_at = [&pair](std::uint32_t tile, int row, int t) {
    return (pair ^ static_cast<std::uint32_t>(16 * t)) + tile + row * 8 * kRowBytes;
  };
  // Of rows i0 and i0 + 8: X v, at last X v + k y; kRowSumBytes on q dq, then k dk.
  const auto row_sums = [&](int row) { return smem + L::kRowSums + (g * 64 + i0 + 8 * row) * 4; };
  const auto all_halves = [](std::uint32_t sums) { return ptx::load_shared_f(sums); };
  const auto arrive = [&](int barrier) {
    __syncwarp();
    ptx::warp_arrive(local_barrier<L>(smem, barrier), lane);
  };
  std::uint32_t n = 0;
  for (std::uint32_t turn = first_item<L>(); turn < num_items; turn += item_step<L>()) {
    const std::uint32_t item = turn + stream;
    ptx::named_sync(kLocalMainsMeet, L::kStreams * L::kMainThreads);
    if (item >= num_items) continue;
    const LocalItem at = local_item(args, item);
    if (at.chunk.length == 0) continue;
    const Chunk& chunk = at.chunk;
    const int hv = at.hv;
    const std::uint32_t parity = n & 1U;
    const int index = static_cast<int>(parity);
    const std::uint32_t set = L::kSets + index * L::kSetBytes;  // offsets
    const std::uint32_t table = L::kTables + index * L::kTableBytes;
    const std::uint32_t half_tile = g * L::kTile;
    const bool valid[2] = {i0 < chunk.length, i0 + 8 < chunk.length};

    // 1.
    forget();
    ptx::mbarrier_wait(local_barrier<L>(smem, L::kSetReady + index), n / 2 & 1U);
    ptx::mbarrier_wait(local_barrier<L>(smem, L::kStatesLoaded), parity);
    ptx::fence_async_shared();
    const float beta[2] = {ptx::load_shared_f(smem + table + L::kBeta + i0 * 4),
                           ptx::load_shared_f(smem + table + L::kBeta + i0 * 4 + 32)};
    const float weight[2] = {fmaxf(beta[0], kSmallestBeta), fmaxf(beta[1], kSmallestBeta)};
    {
      float z[32];
      std::uint32_t a[4 * L::kHalves][4];
#pragma unroll
      for (int s = 0; s < 4 * L::kHalves; ++s) {
        ptx::ldmatrix(a[s], smem + set + L::kKeys + s / 4 * L::kTile +
                                tile_offset(16 * w + lane % 16, 2 * (s % 4) + lane / 16));
      }
      const std::uint32_t start = smem + table + L::kStart + w * L::kD * 2 + 4 * c;
#pragma unroll
      for (int s = 0; s < 4 * L::kHalves; ++s) {  // to the frame of the chunk's start
        const std::uint32_t near = ptx::load_shared_pair(start + 32 * s);
        const std::uint32_t far = ptx::load_shared_pair(start + 32 * s + 16);
        a[s][0] = times_pair(a[s][0], near);
        a[s][1] = times_pair(a[s][1], near);
        a[s][2] = times_pair(a[s][2], far);
        a[s][3] = times_pair(a[s][3], far);
      }
      ptx::wgmma_fence();
#pragma unroll
      for (int s = 0; s < 4 * L::kHalves; ++s) {
        const std::uint64_t b =
            ptx::advance_descriptor(by_columns(smem + L::kStates + half_tile),
                                    s / 4 * L::kHalves * L::kTile + s % 4 * 2048);
        if (s == 0) {
          ptx::wgmma_tile<false>(z, a[s], b);
        } else {
          ptx::wgmma_tile<true>(z, a[s], b);
        }
      }
      ptx::wgmma_commit();
      ptx::mbarrier_wait(local_barrier<L>(smem, L::kValuesLoaded), parity);
      ptx::mbarrier_wait(local_barrier<L>(smem, L::kRowsLoaded), parity);
      std::uint32_t v[2][8];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float x_v = 0.0F;  // of the row, for dbeta
#pragma unroll
        for (int t = 0; t < 8; ++t) {
          v[row][t] = ptx::load_shared_pair(word_at(L::kValues + half_tile, row, t));
          const std::uint32_t x = ptx::load_shared_pair(word_at(L::kX + half_tile, row, t));
          x_v += low_of(x) * low_of(v[row][t]) + high_of(x) * high_of(v[row][t]);
        }
        x_v = quad_sum(x_v);
        if (c == 0) ptx::store_shared_f(row_sums(row), x_v);
      }
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(z);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
#pragma unroll
        for (int t = 0; t < 8; ++t) {
          ptx::store_shared_pair(
              word_at(L::kValues + half_tile, row, t),
              pack_bf16(beta[row] * (low_of(v[row][t]) - z[4 * t + 2 * row]),
                        beta[row] * (high_of(v[row][t]) - z[4 * t + 2 * row + 1])));
        }
      }
      ptx::fence_async_shared();
      ptx::named_sync(group_sync, 128);  // Y before its product
      ptx::wgmma_fence();
      const std::uint64_t inverse = by_rows(smem + L::kInverse);
      const std::uint64_t y = by_columns(smem + L::kValues + half_tile);
      ptx::wgmma_tile<false, true, false>(z, inverse, y);
#pragma unroll
      for (int s = 1; s < 4; ++s) {
        ptx::wgmma_tile<false, true, true>(z, ptx::advance_descriptor(inverse, 32 * s),
                                           ptx::advance_descriptor(y, 2048 * s));
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(z);
      ptx::named_sync(group_sync, 128);  // Y read before U takes its place
#pragma unroll
      for (int row = 0; row < 2; ++row) {
#pragma unroll
        for (int t = 0; t < 8; ++t) {
          ptx::store_shared_pair(word_at(L::kValues + half_tile, row, t),
                                 pack_bf16(z[4 * t + 2 * row], z[4 * t + 2 * row + 1]));
        }
      }
    }
    ptx::mbarrier_wait(local_barrier<L>(smem, L::kGradientsLoaded), parity);
    ptx::fence_async_shared();
    ptx::named_sync(main_sync, L::kMainThreads);  // U before its products; A is read
    arrive(L::kInverseFree);

    // 2.
    forget();
    float acc_q[32];
    float acc_y[32];
    float acc_c[32];
    float2 enter;
    // The masked dN (which = 0) or P (1) to the tile of its own.
    const auto store_pairs = [&](const float(&inner)[32], int which) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float factor = which == 0 ? in.scale : -weight[row];
        const int last = i0 + 8 * row - which;  // the last column that counts
#pragma unroll
        for (int t = 0; t < 8; ++t) {
          const int j = 8 * t + 2 * c;
          const float x = j <= last ? factor * inner[4 * t + 2 * row] : 0.0F;
          const float y = j + 1 <= last ? factor * inner[4 * t + 2 * row + 1] : 0.0F;
          ptx::store_shared_pair(word_at(L::kValues + which * L::kTile, row, t), pack_bf16(x, y));
        }
      }
      ptx::fence_async_shared();
    };
    {
      ptx::wgmma_fence();
      // Both, in the registers of the accumulators that are not needed yet.
      start_values_product<L>(acc_q, smem + L::kOut, smem + L::kValues);
      start_values_product<L>(acc_y, smem + L::kX, smem + L::kValues);
      ptx::wgmma_commit();
      start_values_product<L>(acc_c, smem + L::kValues, smem + L::kGradients);
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      ptx::wgmma_pin(acc_q);
      ptx::wgmma_pin(acc_y);
      store_pairs(acc_y, 1);
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(acc_c);
      ptx::named_sync(main_sync, L::kMainThreads);  // U read before dN takes its place
      store_pairs(acc_q, 0);
      ptx::wgmma_fence();
      start_values_product<L>(acc_q, smem + L::kOut, smem + L::kStates);
      start_values_product<L>(acc_y, smem + L::kX, smem + L::kStates);
      ptx::wgmma_commit();
      // What enters at the chunk's end, sum_i k_i (dk of the state's product)_i, block by block.
      float sums[16];
#pragma unroll
      for (int t = 0; t < 8; ++t) {
        const float2 k0 =
            pair_floats(ptx::load_shared_pair(word_at(set + L::kColumns + half_tile, 0, t)));
        const float2 k1 =
            pair_floats(ptx::load_shared_pair(word_at(set + L::kColumns + half_tile, 1, t)));
        sums[2 * t] = k0.x * acc_c[4 * t] + k1.x * acc_c[4 * t + 2];
        sums[2 * t + 1] = k0.y * acc_c[4 * t + 1] + k1.y * acc_c[4 * t + 3];
      }
      enter = column_sums(sums, r);
    }
    const std::uint32_t my_columns = (64 * g + 8 * r + 2 * c) * 2;  // bytes of bf16
    {
      const float2 end = ptx::load_shared_f2(smem + table + L::kEnd + 2 * my_columns);
      enter.x *= end.x;
      enter.y *= end.y;
#pragma unroll 1
      for (int J = 3; J > w; --J) {
        const float2 x = pair_floats(
            ptx::load_shared_pair(smem + table + L::kChain + J * L::kD * 2 + my_columns));
        enter.x *= x.x;
        enter.y *= x.y;
      }
    }
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(acc_q);
    ptx::wgmma_pin(acc_y);
    arrive(L::kTilesFree);
    ptx::named_sync(main_sync, L::kMainThreads);  // dN and P before the sweeps

    // 3.
    forget();
    {
      const std::uint32_t chain = smem + table + L::kChain + (64 * g + 2 * c) * 2;
      const std::uint64_t d_n_rows = by_rows(smem + L::kValues);
      const std::uint64_t d_n_columns = by_columns(smem + L::kValues);
      const std::uint64_t p_rows = by_rows(smem + L::kValues + L::kTile);
      const std::uint64_t p_columns = by_columns(smem + L::kValues + L::kTile);
      const std::uint64_t queries = by_columns(smem + set + L::kQueries + half_tile);
      const std::uint64_t keys = by_columns(smem + set + L::kKeys + half_tile);
      const std::uint64_t columns = by_columns(smem + set + L::kColumns + half_tile);
      // Block J of the rows and block I of the columns.
      const auto sweep = [&](int J, int I) {
        ptx::wgmma_fence();
        ptx::wgmma_tile<true, true, true>(acc_c, ptx::advance_descriptor(d_n_columns, 2048 * I),
                                          ptx::advance_descriptor(queries, 2048 * I));
        ptx::wgmma_tile<false, true, true>(acc_q, ptx::advance_descriptor(d_n_rows, 32 * J),
                                           ptx::advance_descriptor(columns, 2048 * J));
        ptx::wgmma_tile<true, true, true>(acc_c, ptx::advance_descriptor(p_columns, 2048 * I),
                                          ptx::advance_descriptor(keys, 2048 * I));
        ptx::wgmma_tile<false, true, true>(acc_y, ptx::advance_descriptor(p_rows, 32 * J),
                                           ptx::advance_descriptor(columns, 2048 * J));
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(acc_q);
        ptx::wgmma_pin(acc_y);
        ptx::wgmma_pin(acc_c);
      };
#pragma unroll
      for (int t = 0; t < 8; ++t) {
        const float2 x = ptx::load_shared_f2(smem + table + L::kEnd + (64 * g + 8 * t + 2 * c) * 4);
        acc_c[4 * t] *= x.x;
        acc_c[4 * t + 1] *= x.y;
        acc_c[4 * t + 2] *= x.x;
        acc_c[4 * t + 3] *= x.y;
      }
      change_frame(chain, acc_q, in.scale);
      change_frame(chain, acc_y, -weight[0], -weight[1]);
      sweep(0, 3);
#pragma unroll 1  // less code to fetch
      for (int J = 1; J < 4; ++J) {
        const int I = 3 - J;
        if (w <= I) change_frame(chain + (I + 1) * L::kD * 2, acc_c);
        if (w >= J) {
          change_frame(chain + J * L::kD * 2, acc_q);
          change_frame(chain + J * L::kD * 2, acc_y);
        }
        sweep(J, I);
      }
    }
    arrive(L::kValuesFree);
    // Factors are read by all products: now they are each thread's own.
    ptx::named_sync(main_sync, L::kMainThreads);

    // 4.
    forget();
    // Unit q and k take the places of the row factors: kept, they would not fit into registers.
    float q_dot[2] = {};
    float k_dot[2] = {};
    float y_sum[2] = {};  // k y, with beta in it
#pragma unroll
    for (int part = 0; part < 4; ++part) {  // four words at a time: loads of all before the stores
      const int row = part / 2;
      std::uint32_t words[4][3];
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int t = part % 2 * 4 + x;
        words[x][0] = ptx::load_shared_pair(word_at(set + L::kQueries + half_tile, row, t));
        words[x][1] = ptx::load_shared_pair(word_at(set + L::kKeys + half_tile, row, t));
        words[x][2] = ptx::load_shared_pair(word_at(set + L::kColumns + half_tile, row, t));
      }
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const int t = part % 2 * 4 + word;
        float uq[2];
        float uk[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int x = 4 * t + 2 * row + e;
          const auto element = [e](std::uint32_t pair_of) {
            return e == 0 ? low_of(pair_of) : high_of(pair_of);
          };
          const float qu = element(words[word][0]);
          const float ku = element(words[word][1]);
          const float kd = element(words[word][2]);
          const float square = ku * ptx::rcp_approx(kd);  // 2^2l
          const float down = ptx::rsqrt_approx(square);
          const float up = square * down;
          const float from_q = qu * acc_q[x];
          const float from_y = ku * acc_y[x];
          const float from_c = kd * acc_c[x];
          q_dot[row] += from_q;
          y_sum[row] += from_y;
          k_dot[row] += from_y + from_c;
          acc_q[x] *= up;                                  // dq
          acc_c[x] = fmaf(up, acc_y[x], acc_c[x] * down);  // dk
          acc_y[x] = from_q + from_y - from_c;             // dG
          uq[e] = qu * down;
          uk[e] = kd * up;
        }
        words[word][0] = pack_bf16(uq[0], uq[1]);
        words[word][1] = pack_bf16(uk[0], uk[1]);
      }
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int t = part % 2 * 4 + x;
        ptx::store_shared_pair(word_at(set + L::kQueries + half_tile, row, t), words[x][0]);
        ptx::store_shared_pair(word_at(set + L::kKeys + half_tile, row, t), words[x][1]);
      }
    }
    sums_from_end(acc_y, r, c);
    // g again, for the gate's backward; not before dq and dk have left their registers.
    std::uint32_t gate[2][8];
    const auto load_gate = [&] {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const auto* from = static_cast<const std::uint16_t*>(in.g.data) + chunk.row * in.g.s0 +
                           (chunk.begin + i0 + 8 * row) * in.g.s1 + hv * in.g.s2 + 64 * g + 2 * c;
#pragma unroll
        for (int t = 0; t < 8; ++t) {
          gate[row][t] =
              valid[row] ? __ldg(reinterpret_cast<const std::uint32_t*>(from + 8 * t)) : 0U;
        }
      }
    };
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float by =
          fmaxf(ptx::load_shared_f(smem + table + L::kBeta + (i0 + 8 * row) * 4), kSmallestBeta);
      const float a = quad_sum(y_sum[row]) / by;
      const float b = quad_sum(q_dot[row]);
      const float d = quad_sum(k_dot[row]);
      if (c == 0) {
        const std::uint32_t to = row_sums(row);
        ptx::store_shared_f(to, a + ptx::load_shared_f(to));
        ptx::store_shared_f(to + L::kRowSumBytes, b);
        ptx::store_shared_f(to + 2 * L::kRowSumBytes, d);
      }
    }
    // The place of the warp's column factors (2 KiB) now holds, per channel: sums of dG over the
    // block, what enters at the end.
    __syncwarp();
    const std::uint32_t scratch = set + L::kColumns + half_tile;  // + 2048 w
    if (r == 0) {
#pragma unroll
      for (int t = 0; t < 8; ++t) {
        ptx::store_shared_f2(smem + scratch + 2048 * w + (8 * t + 2 * c) * 4, acc_y[4 * t],
                             acc_y[4 * t + 1]);
      }
    }
    ptx::store_shared_f2(smem + scratch + 2048 * w + 256 + (8 * r + 2 * c) * 4, enter.x, enter.y);
    ptx::mbarrier_wait(local_barrier<L>(smem, L::kDotReady), parity);
    ptx::named_sync(main_sync, L::kMainThreads);       // sums before their readers
    const int thread = ptx::forgotten(32 * w + lane);  // not kept over items
    if (thread < 64) {                                 // what enters a block from later rows
      const std::uint32_t from = smem + scratch + thread * 4;
      float decay = ptx::load_shared_f(smem + table + L::kEnd + (64 * g + thread) * 4);
      float sum = 0.0F;
#pragma unroll
      for (int J = 3; J >= 0; --J) {
        const std::uint32_t pair_of = ptx::load_shared_pair(
            smem + table + L::kChain + J * L::kD * 2 + (64 * g + thread / 2 * 2) * 2);
        decay *= thread % 2 == 0 ? low_of(pair_of) : high_of(pair_of);
        sum += ptx::load_shared_f(from + 2048 * J + 256);
      }
      sum = fmaf(decay, ptx::load_shared_f(smem + L::kStateDot + (64 * g + thread) * 4), sum);
#pragma unroll
      for (int J = 3; J >= 0; --J) {
        ptx::store_shared_f(from + 2048 * J + 256, sum);
        sum += ptx::load_shared_f(from + 2048 * J);
      }
    }
    // Gradients of q and k do not wait for them.
    forget();
    const int h = hv / args.shape.G;
    if constexpr (kGrouped) {
      const std::int64_t token = chunk.row * args.shape.T + chunk.begin + i0;
      const std::int64_t to = (token * args.shape.HV + hv) * L::kD + 64 * g + 2 * c;
      const std::int64_t stride = static_cast<std::int64_t>(args.shape.HV) * L::kD;
      store_part(acc_q, args.dq_part + to, stride, valid);
      store_part(acc_c, args.dk_part + to, stride, valid);
    } else {
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        const Tensor& t_out = which == 0 ? args.dq : args.dk;
        if (t_out.data == nullptr) continue;
        float(&grad)[32] = which == 0 ? acc_q : acc_c;
        const std::uint32_t tile = set + (which == 0 ? L::kQueries : L::kKeys) + half_tile;
        std::uint32_t words[2][8];
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const std::uint32_t sums =
              smem + L::kRowSums + (which == 0 ? 1 : 2) * L::kRowSumBytes + (i0 + 8 * row) * 4;
          const float dot = all_halves(sums);
          const float rstd = ptx::load_shared_f(smem + table + L::kNorms + (i0 + 8 * row) * 8 +
                                                (which == 0 ? 4 : 0));
#pragma unroll
          for (int t = 0; t < 8; ++t) {
            const float2 unit = pair_floats(ptx::load_shared_pair(word_at(tile, row, t)));
            words[row][t] = pack_bf16(rstd * (grad[4 * t + 2 * row] - dot * unit.x),
                                      rstd * (grad[4 * t + 2 * row + 1] - dot * unit.y));
          }
        }
        store_rows(words, smem + tile, w, lane,
                   static_cast<std::uint16_t*>(t_out.data) + chunk.row * t_out.s0 +
                       chunk.begin * t_out.s1 + h * t_out.s2 + 64 * g,
                   t_out.s1, chunk.length);
      }
    }
    load_gate();
    if (g == 0 && thread < chunk.length && args.dbeta.data != nullptr) {
      const std::uint32_t from = smem + L::kRowSums + thread * 4;
      float sum = all_halves(from);
      if (in.beta_is_logit) {
        const float b = ptx::load_shared_f(smem + table + L::kBeta + thread * 4);
        sum *= b * (1.0F - b / in.beta_max);
      }
      store(args.dbeta,
            chunk.row * args.dbeta.s0 + (chunk.begin + thread) * args.dbeta.s1 + hv * args.dbeta.s2,
            sum);
    }
    ptx::named_sync(group_sync, 128);  // what enters each block before its readers
    forget();
    const float exp_a = in.gate.a_log != nullptr ? expf(__ldg(in.gate.a_log + hv)) : 1.0F;
    const float slope = -kLog2E * exp_a;
    const float factor = kStandard ? -exp_a : in.gate.lower_bound * exp_a;
    const float* dt_bias = in.gate.dt_bias == nullptr
                               ? nullptr
                               : in.gate.dt_bias + static_cast<std::int64_t>(hv) * L::kD + 64 * g;
    float da_log = 0.0F;
    float sums[16];
#pragma unroll
    for (int t = 0; t < 8; ++t) {
      const float2 later =
          ptx::load_shared_f2(smem + scratch + 2048 * w + 256 + (8 * t + 2 * c) * 4);
      const float2 bias = dt_bias != nullptr
                              ? __ldg(reinterpret_cast<const float2*>(dt_bias + 8 * t + 2 * c))
                              : make_float2(0.0F, 0.0F);
      sums[2 * t] = sums[2 * t + 1] = 0.0F;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float2 x = pair_floats(gate[row][t]);
        const float z0 = x.x + bias.x;
        const float z1 = x.y + bias.y;
        const float own = valid[row] ? factor : 0.0F;
        const float da0 = (acc_y[4 * t + 2 * row] + later.x) * own;
        const float da1 = (acc_y[4 * t + 2 * row + 1] + later.y) * own;
        const float dx0 = da0 * (kStandard ? fast_sigmoid(z0) : fast_sigmoid_slope(slope * z0));
        const float dx1 = da1 * (kStandard ? fast_sigmoid(z1) : fast_sigmoid_slope(slope * z1));
        if constexpr (kStandard) {
          da_log += da0 * fast_softplus(z0) + da1 * fast_softplus(z1);
        } else {
          da_log += dx0 * z0 + dx1 * z1;
        }
        sums[2 * t] += dx0;
        sums[2 * t + 1] += dx1;
        gate[row][t] = pack_bf16(dx0, dx1);
      }
    }
    if (args.dg.data != nullptr) {
      store_rows(gate, smem + set + L::kQueries + half_tile, w, lane,
                 static_cast<std::uint16_t*>(args.dg.data) + chunk.row * args.dg.s0 +
                     chunk.begin * args.dg.s1 + hv * args.dg.s2 + 64 * g,
                 args.dg.s1, chunk.length);
    }
    const float2 bias_sum = column_sums(sums, r);
    ptx::store_shared_f2(smem + scratch + 2048 * w + (8 * r + 2 * c) * 4, bias_sum.x, bias_sum.y);
    da_log = warp_sum(da_log);
    if (lane == 0) ptx::store_shared_f(smem + L::kLogShares + (4 * g + w) * 4, da_log);
    // Shares of the parameters' gradients before their sums.
    ptx::named_sync(main_sync, L::kMainThreads);
    if (args.dbias_part != nullptr && thread < 64) {
      const std::uint32_t from = smem + scratch + thread * 4;
      args.dbias_part[static_cast<std::int64_t>(item) * L::kD + 64 * g + thread] =
          ptx::load_shared_f(from) + ptx::load_shared_f(from + 2048) +
          ptx::load_shared_f(from + 4096) + ptx::load_shared_f(from + 6144);
    }
    if (args.da_log_part != nullptr && g == 0 && thread == 0) {
      float sum = 0.0F;
#pragma unroll
      for (int x = 0; x < L::kMainWarps; ++x)
        sum += ptx::load_shared_f(smem + L::kLogShares + x * 4);
      args.da_log_part[item] = sum;
    }
    arrive(L::kSetFree + index);
    ++n;
  }
}

}  // namespace kda::cuda::hopper::narrow
