// The main warpgroups of the chunk-local backward, one for each half of the channels: every product
// but those of prep, and every gradient. Spec "backward with fewer products".
//
// Warp w of a warpgroup has rows 16 w .. of the chunk (block w), warpgroup g the channels 64 g ..
// + 63, and in step 1 the value columns 64 g ..:
//   1. Z = kt S, Y = beta (v - Z), U = A Y                      in place of v
//   2. dN = scale tril(d_o U^T) (g = 0), P = -beta stril(X U^T) (g = 1; K = 64: both g = 0)
//      q: d_o S^T, y: -beta X S^T, c: U D^T                     three accumulators of 32 registers
//   3. sweeps, block by block, each accumulator in the frame of the block that comes next:
//      q += dN (k 2^-l), y += P (k 2^-l), c += dN^T (q 2^l) + P^T (k 2^l)
//   4. dq, dk, dG = q dq + k kRow - k kCol, its sums from the end, gate, norm and sigmoid.
// A thread holds rows r, r + 8 of its block and channels 8 t + 2 c, + 1 of its half.
#pragma once

#include "cuda/hopper/local_layout.cuh"
#include "cuda/hopper/local_products.cuh"
#include "cuda/hopper/local_rows.cuh"
#include "cuda/hopper/local_sums.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/shared_vector.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/ptx/wgmma_tile.cuh"
#include "cuda/tile/fast_gate.cuh"
#include "cuda/tile/fragment.cuh"

namespace kda::cuda::hopper {

// Rows and columns take one rounded beta P: what a pair of tokens adds to dG at one and takes at
// the other cancels, which sums over many tokens (d dt_bias) need. dbeta wants y without beta, so
// beta is at least kSmallestBeta there and can be divided by.
inline constexpr float kSmallestBeta = 5.9604645e-08F;  // 2^-24

template <typename L, bool kGrouped, bool kStandard>
__device__ inline void local_main_role(const ChunkArgs& args, std::uint32_t base, int stream, int g,
                                       int w, int lane, std::uint32_t num_items) {
  const int r = lane / 4;
  const int c = lane % 4;
  const int i0 = 16 * w + r;
  const Inputs& in = args.in;
  const std::uint32_t main_sync = kLocalMainSync + 5 * stream;
  const std::uint32_t group_sync = L::kHalves == 1 ? main_sync : kLocalGroupSync + 5 * stream + g;
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
  // `which` of the sums of rows i0 and i0 + 8.
  const auto row_sums = [&](int which, int row) {
    return smem + L::kRowSums + which * L::kRowSumBytes + (g * 64 + i0 + 8 * row) * 4;
  };
  const auto all_halves = [](std::uint32_t sums) {
    float sum = ptx::load_shared_f(sums);
    if constexpr (L::kHalves == 2) sum += ptx::load_shared_f(sums + 256);
    return sum;
  };
  const auto arrive = [&](int barrier) {
    __syncwarp();
    ptx::warp_arrive(local_barrier<L>(smem, barrier), lane);
  };
  std::uint32_t n = 0;
  for (std::uint32_t item = first_item<L>(stream); has_turn<L>(item, num_items);
       item += item_step<L>()) {
    meet_streams<L>(kLocalMainsMeet, L::kMainThreads);
    if (item >= num_items) break;
    const LocalItem at = local_item(args, item);
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
      const int l = L::kSpareRegs ? lane : ptx::forgotten(lane);  // not kept for later addresses
#pragma unroll
      for (int s = 0; s < 4 * L::kHalves; ++s) {
        ptx::ldmatrix(a[s], smem + set + L::kKeys + s / 4 * L::kTile +
                                tile_offset(16 * w + l % 16, 2 * (s % 4) + l / 16));
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
        if (c == 0) ptx::store_shared_f(row_sums(index, row), x_v);
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
      if constexpr (L::kHalves == 2) {
        float inner[32];  // dN or P
        start_values_product<L>(inner, smem + (g == 0 ? L::kOut : L::kX), smem + L::kValues);
        start_values_product<L>(acc_c, smem + L::kValues, smem + L::kGradients + 2 * half_tile);
        ptx::wgmma_commit();
        start_values_product<L>(acc_q, smem + L::kOut, smem + L::kStates + 2 * half_tile);
        start_values_product<L>(acc_y, smem + L::kX, smem + L::kStates + 2 * half_tile);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
        ptx::wgmma_pin(inner);
        ptx::wgmma_pin(acc_c);
        ptx::named_sync(main_sync, L::kMainThreads);  // U read before dN and P take its place
        store_pairs(inner, g);
      } else {
        // Both, in the registers of the accumulators that are not needed yet.
        start_values_product<L>(acc_q, smem + L::kOut, smem + L::kValues);
        start_values_product<L>(acc_y, smem + L::kX, smem + L::kValues);
        ptx::wgmma_commit();
        start_values_product<L>(acc_c, smem + L::kValues, smem + L::kGradients);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
        ptx::wgmma_pin(acc_q);
        ptx::wgmma_pin(acc_y);
        store_pairs(acc_y, 1);  // a tile that U does not take
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(acc_c);
        ptx::named_sync(main_sync, L::kMainThreads);  // U read before dN takes its place
        store_pairs(acc_q, 0);
        ptx::wgmma_fence();
        start_values_product<L>(acc_q, smem + L::kOut, smem + L::kStates);
        start_values_product<L>(acc_y, smem + L::kX, smem + L::kStates);
        ptx::wgmma_commit();
      }
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
      // Block J of the rows, block 3 - J of the columns.
      const auto sweep = [&](int J) {
        const int I = 3 - J;
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
      float2 x[8];
#pragma unroll
      for (int t = 0; t < 8; ++t)
        x[t] = ptx::load_shared_f2(smem + table + L::kEnd + (64 * g + 8 * t + 2 * c) * 4);
      change_frame(x, acc_c);
      load_frame(chain, x);
      change_frame(x, acc_q, in.scale, in.scale);
      change_frame(x, acc_y, -weight[0], -weight[1]);
      sweep(0);
      // Side by side a loop is less code to fetch.
#pragma unroll(L::kStreams == 1 ? 3 : 1)
      for (int J = 1; J < 4; ++J) {
        if (w <= 3 - J) {
          load_frame(chain + (4 - J) * L::kD * 2, x);
          change_frame(x, acc_c);
        }
        if (w >= J) {
          load_frame(chain + J * L::kD * 2, x);
          change_frame(x, acc_q);
          change_frame(x, acc_y);
        }
        sweep(J);
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
    sums_from_end<L>(acc_y, smem, r, c);
    // g again, for the gate's backward.
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
    if constexpr (L::kSpareRegs) load_gate();
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float by =
          fmaxf(ptx::load_shared_f(smem + table + L::kBeta + (i0 + 8 * row) * 4), kSmallestBeta);
      const float a = quad_sum(y_sum[row]) * ptx::rcp_approx(by);
      const float b = quad_sum(q_dot[row]);
      const float d = quad_sum(k_dot[row]);
      if (c == 0) {
        const std::uint32_t to = row_sums(index, row);  // X v, and now k y
        ptx::store_shared_f(to, a + ptx::load_shared_f(to));
        ptx::store_shared_f(row_sums(2, row), b);
        ptx::store_shared_f(row_sums(3, row), d);
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
    arrive(L::kSumsReady);  // the loaders make of them what enters each block from later rows
    ptx::named_sync(main_sync, L::kMainThreads);       // row sums before their readers
    const int thread = ptx::forgotten(32 * w + lane);  // not kept over items
    const float a_log =
        in.gate.a_log != nullptr ? __ldg(in.gate.a_log + hv) : 0.0F;  // early: it is far
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
      // [dq, dk], side by side for their latencies where registers are left.
      const auto tile_of = [&](int which) {
        return set + (which == 0 ? L::kQueries : L::kKeys) + half_tile;
      };
      constexpr int kAtOnce = L::kSpareRegs ? 2 : 1;
#pragma unroll
      for (int first = 0; first < 2; first += kAtOnce) {
        std::uint32_t words[kAtOnce][2][8];
#pragma unroll
        for (int x = 0; x < kAtOnce; ++x) {
#pragma unroll
          for (int row = 0; row < 2; ++row) {
#pragma unroll
            for (int t = 0; t < 8; ++t)  // unit q or k
              words[x][row][t] = ptx::load_shared_pair(word_at(tile_of(first + x), row, t));
          }
        }
#pragma unroll
        for (int x = 0; x < kAtOnce; ++x) {
          const int which = first + x;
          float(&grad)[32] = which == 0 ? acc_q : acc_c;
#pragma unroll
          for (int row = 0; row < 2; ++row) {
            const float dot =
                all_halves(smem + L::kRowSums + (2 + which) * L::kRowSumBytes + (i0 + 8 * row) * 4);
            const float rstd = ptx::load_shared_f(smem + table + L::kNorms + (i0 + 8 * row) * 8 +
                                                  (which == 0 ? 4 : 0));
#pragma unroll
            for (int t = 0; t < 8; ++t) {
              const float2 unit = pair_floats(words[x][row][t]);
              words[x][row][t] = pack_bf16(rstd * (grad[4 * t + 2 * row] - dot * unit.x),
                                           rstd * (grad[4 * t + 2 * row + 1] - dot * unit.y));
            }
          }
        }
        __syncwarp();  // units read
#pragma unroll
        for (int x = 0; x < kAtOnce; ++x)
          stage_rows(words[x], smem + tile_of(first + x), w, lane);
        __syncwarp();  // rows before their readers
#pragma unroll
        for (int x = 0; x < kAtOnce; ++x) {
          const int which = first + x;
          const Tensor& to = which == 0 ? args.dq : args.dk;
          store_rows(smem + tile_of(which), w, lane,
                     static_cast<std::uint16_t*>(to.data) + chunk.row * to.s0 +
                         chunk.begin * to.s1 + h * to.s2 + 64 * g,
                     to.s1, to.data != nullptr ? chunk.length : 0);
        }
      }
    }
    arrive(L::kUnitsFree);
    if constexpr (!L::kSpareRegs) load_gate();
    const auto bias_of = [&](int t) {
      if (in.gate.dt_bias == nullptr) return make_float2(0.0F, 0.0F);
      const float* from =
          in.gate.dt_bias + static_cast<std::int64_t>(hv) * L::kD + 64 * g + 8 * t + 2 * c;
      return __ldg(reinterpret_cast<const float2*>(from));
    };
    float2 bias[8];  // early: it is far
#pragma unroll
    for (int t = 0; t < 8; ++t)
      bias[t] = bias_of(t);
    if (g == 0 && thread < chunk.length && args.dbeta.data != nullptr) {
      const std::uint32_t from = smem + L::kRowSums + index * L::kRowSumBytes + thread * 4;
      float sum = all_halves(from);
      if (in.beta_is_logit) {
        const float b = ptx::load_shared_f(smem + table + L::kBeta + thread * 4);
        sum *= b * (1.0F - b * ptx::rcp_approx(in.beta_max));
      }
      store(args.dbeta,
            chunk.row * args.dbeta.s0 + (chunk.begin + thread) * args.dbeta.s1 + hv * args.dbeta.s2,
            sum);
    }
    ptx::mbarrier_wait(local_barrier<L>(smem, L::kEnterReady), parity);
    forget();
    const float exp_a = ptx::exp2_approx(kLog2E * a_log);
    const float slope = -kLog2E * exp_a;
    const float factor = kStandard ? -exp_a : in.gate.lower_bound * exp_a;
    float da_log = 0.0F;
    float sums[16];
#pragma unroll
    for (int t = 0; t < 8; ++t) {
      const float2 later =
          ptx::load_shared_f2(smem + scratch + 2048 * w + 256 + (8 * t + 2 * c) * 4);
      sums[2 * t] = sums[2 * t + 1] = 0.0F;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float2 x = pair_floats(gate[row][t]);
        const float z0 = x.x + bias[t].x;
        const float z1 = x.y + bias[t].y;
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
    if (args.dg.data != nullptr) {  // by way of the warp's rows of the column factors
      const std::uint32_t tile = smem + set + L::kColumns + half_tile;
      __syncwarp();  // what enters the block is read
      stage_rows(gate, tile, w, lane);
      __syncwarp();  // rows before their readers
      store_rows(tile, w, lane,
                 static_cast<std::uint16_t*>(args.dg.data) + chunk.row * args.dg.s0 +
                     chunk.begin * args.dg.s1 + hv * args.dg.s2 + 64 * g,
                 args.dg.s1, chunk.length);
    }
    __syncwarp();  // and these, before the sums take their place
    const float2 bias_sum = column_sums(sums, r);
    ptx::store_shared_f2(smem + scratch + 2048 * w + (8 * r + 2 * c) * 4, bias_sum.x, bias_sum.y);
    da_log = warp_sum(da_log);
    if (lane == 0) ptx::store_shared_f(smem + L::kLogShares + (4 * g + w) * 4, da_log);
    arrive(L::kSetFree + index);
    ++n;
  }
}

}  // namespace kda::cuda::hopper
