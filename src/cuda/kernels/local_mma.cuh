// Chunk-local part of the backward with tensor cores, one kernel: the math of local_simt.cuh.
//
// In order, each step on the tiles that the one before left in shared memory:
//   1. U = A (beta (v - kt S))
//   2. dN = scale tril(do U^T), P = -strict_tril(X U^T)
//   3. accumulators do S^T, -X S^T (relative to the chunk's start), U D^T (to its end), sum_v S D
//   4, 5. factors of q and k, sweeps (local_sweeps.cuh)
//   6. dq, dk (norm's backward), dg (suffix sum, gate's backward), dbeta, partial sums
// Inputs: q, k, g, v, do; kt, a, beta (prep); S (h), D, X (scans). Outputs: see step 6; with G > 1
// dq and dk go to f32 partials for the fold. Grid: num_chunks * HV blocks of 16 warps; warp (rb,
// cq) owns rows 16 rb .. + 15 and a quarter of the columns (K = V = 96: 12 warps and thirds, 32: 8
// and halves), in C fragment layout throughout. Shared memory at K = V = 128: 96 KiB (S, D, do, X;
// later six factor tiles) + 16 (kt, later U) + 16 (v, Z, later dN and P) + 8 (A) + 9 KiB: one block
// per SM.
#pragma once

#include <type_traits>

#include "cuda/kernels/local_sweeps.cuh"
#include "cuda/tile/retry.cuh"

namespace kda::cuda {

template <int kK, int kV, bool kPlain>
__device__ __forceinline__ void local_mma_tile(const ChunkArgs& args, std::int64_t tile,
                                               LocalSmem<kK, kV>& s) {
  constexpr int kThreads = kLocalThreads<kK>;
  constexpr int kGroups = kLocalGroups<kK>;
  static_assert(kGroups == kLocalGroups<kV>);
  constexpr int kTilesK = kK / 8 / kGroups;  // n-tiles per warp: 2 or 4
  constexpr int kTilesV = kV / 8 / kGroups;
  const int HV = args.shape.HV;
  const int K = args.shape.K;
  const int V = args.shape.V;
  const std::int64_t chunk_index = static_cast<unsigned>(tile) / static_cast<unsigned>(HV);
  const int hv = static_cast<int>(static_cast<unsigned>(tile) % static_cast<unsigned>(HV));
  const Chunk chunk = chunk_at(args.map, chunk_index);
  if (chunk.length <= 0) return;
  const int tid = threadIdx.x;
  const int warp = tid / 32;
  int lane = tid % 32;  // forgotten between steps: addresses made of it fill the registers
  const int rb = warp / kGroups;
  const int cq = warp % kGroups;
  const int r = lane / 4;
  const int c = lane % 4;
  const int row0 = 16 * rb;
  const int i0 = row0 + r;
  const int v_col = 8 * kTilesV * cq;  // the warp's first column of V
  const int col = 8 * kTilesK * cq;    // and channel
  // Byte offset in a tile of kV columns of the thread's first pair; the others are an exclusive or
  // (columns) and a sum (rows) away. Forgotten between steps, too.
  std::uint32_t first_value = pair_address<kV>(0, i0, v_col + 2 * c);
  const auto value_at = [&first_value](int row, int t) {
    return (first_value ^ static_cast<std::uint32_t>(16 * t)) +
           static_cast<std::uint32_t>(16 * kPitch<kV> * row);
  };
  const Inputs& in = args.in;

  // Loads, in the order in which they are needed.
  const auto copy = [&]<int kRows>(std::integral_constant<int, kRows>, const Tensor& t,
                                   std::int64_t at, std::int64_t stride, int rows,
                                   const std::uint16_t* to) {
    if constexpr (kPlain) {
      copy_rows<kRows, kV, kThreads>(static_cast<const std::uint16_t*>(t.data) + at, stride, rows,
                                     smem_address(to));
    } else {
      copy_matrix<kRows, kV, kThreads, false>(t, at, stride, rows, V, smem_address(to));
    }
  };
  constexpr std::integral_constant<int, kK> kStateRows;
  constexpr std::integral_constant<int, kC> kTokenRows;
  copy(kStateRows, args.h, chunk_index * args.h.s0 + hv * args.h.s1, args.h.s2, K, s.s);
  copy_tile<kK, kThreads>(static_cast<const std::uint16_t*>(args.factors.kt) + tile * kC * kK,
                          smem_address(s.u));
  copy_tile<kC, kThreads>(static_cast<const std::uint16_t*>(args.factors.a) + tile * kC * kC,
                          smem_address(s.a));
  copy(kTokenRows, in.v, chunk.row * in.v.s0 + chunk.begin * in.v.s1 + hv * in.v.s2, in.v.s1,
       chunk.length, s.v);
  ptx::cp_async_commit();
  copy(kTokenRows, args.x, chunk_index * args.x.s0 + hv * args.x.s1, args.x.s2, kC, s.x);
  const Tensor& d_o = args.d_o;
  copy(kTokenRows, d_o, chunk.row * d_o.s0 + chunk.begin * d_o.s1 + hv * d_o.s2, d_o.s1,
       d_o.data == nullptr ? 0 : chunk.length, s.d_o);
  ptx::cp_async_commit();
  copy(kStateRows, args.d_states, chunk_index * args.d_states.s0 + hv * args.d_states.s1,
       args.d_states.s2, K, s.d);
  ptx::cp_async_commit();
  if (tid < kC) s.beta[tid] = args.factors.beta[tile * kC + tid];
  ptx::cp_async_wait<2>();
  __syncthreads();  // S, kt, A, v, beta before step 1

  // 1. Z = beta (v - kt S), U = A Z.
  lane = ptx::forgotten(lane);
  first_value = ptx::forgotten(first_value);
  const float beta[2] = {s.beta[i0], s.beta[i0 + 8]};
  std::uint32_t v_pair[kTilesV][2];
  {
    float z[kTilesV][4];
    clear(z);
    multiply_rows<kK, kV, kTilesV>(smem_address(s.u), row0, smem_address(s.s), v_col, lane, z);
#pragma unroll
    for (int t = 0; t < kTilesV; ++t) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const std::uint32_t at = smem_address(s.v) + value_at(row, t);
        const std::uint32_t v = ptx::load_shared_pair(at);
        v_pair[t][row] = v;
        ptx::store_shared_pair(at, pack_bf16(beta[row] * (low_of(v) - z[t][2 * row]),
                                             beta[row] * (high_of(v) - z[t][2 * row + 1])));
      }
    }
    __syncthreads();  // Z before its readers; kt read before U takes its place
    clear(z);
    for (int J = 0; J <= rb; ++J) {
      std::uint32_t a[4];
      ptx::ldmatrix(a, block_address<kC>(smem_address(s.a), row0, 16 * J, lane));
      multiply_block<kV, kTilesV>(a, smem_address(s.v), 16 * J, v_col, lane, z);
    }
#pragma unroll
    for (int t = 0; t < kTilesV; ++t) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        ptx::store_shared_pair(smem_address(s.u) + value_at(row, t),
                               pack_bf16(z[t][2 * row], z[t][2 * row + 1]));
      }
    }
  }
  ptx::cp_async_wait<1>();
  __syncthreads();  // U, X, do before step 2; Z read before dN and P take its place

  // 2. dN and P, one 16x16 block per warp; X.v for dbeta.
  lane = ptx::forgotten(lane);
  first_value = ptx::forgotten(first_value);
  {
    float sum[2] = {};
#pragma unroll
    for (int t = 0; t < kTilesV; ++t) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const std::uint32_t x = ptx::load_shared_pair(smem_address(s.x) + value_at(row, t));
        sum[row] += low_of(x) * low_of(v_pair[t][row]) + high_of(x) * high_of(v_pair[t][row]);
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float all = quad_sum(sum[row]);
      if (c == 0) s.row_sum[3][cq][i0 + 8 * row] = all;
    }
#pragma unroll 1
    for (int J = cq; J <= rb; J += kGroups) {
      float d_n[2][4] = {};
      float p[2][4] = {};
#pragma unroll
      for (int k = 0; k < kV / 16; ++k) {
        std::uint32_t a[4];
        std::uint32_t x[4];
        std::uint32_t b[4];
        ptx::ldmatrix(a, block_address<kV>(smem_address(s.d_o), row0, 16 * k, lane));
        ptx::ldmatrix(x, block_address<kV>(smem_address(s.x), row0, 16 * k, lane));
        ptx::ldmatrix(b, block_address<kV>(smem_address(s.u), 16 * J, 16 * k, lane));
        ptx::mma_bf16(d_n[0], a, b[0], b[2]);
        ptx::mma_bf16(d_n[1], a, b[1], b[3]);
        ptx::mma_bf16(p[0], x, b[0], b[2]);
        ptx::mma_bf16(p[1], x, b[1], b[3]);
      }
#pragma unroll
      for (int t = 0; t < 2; ++t) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const int i = i0 + 8 * row;
          const int j = 16 * J + 8 * t + 2 * c;
          const float n0 = i >= j ? in.scale * d_n[t][2 * row] : 0.0F;
          const float n1 = i >= j + 1 ? in.scale * d_n[t][2 * row + 1] : 0.0F;
          const float p0 = i > j ? -p[t][2 * row] : 0.0F;
          const float p1 = i > j + 1 ? -p[t][2 * row + 1] : 0.0F;
          ptx::store_shared_pair(pair_address<kC>(smem_address(s.d_n), i, j), pack_bf16(n0, n1));
          ptx::store_shared_pair(pair_address<kC>(smem_address(s.p), i, j), pack_bf16(p0, p1));
        }
      }
    }
  }
  ptx::cp_async_wait<0>();
  __syncthreads();  // D before step 3; dN, P before step 5

  // 3. Products with S and D.
  lane = ptx::forgotten(lane);
  float acc_q[kTilesK][4];
  float acc_y[kTilesK][4];
  float acc_c[kTilesK][4];
  clear(acc_q);
  clear(acc_y);
  clear(acc_c);
  local_products<kK, kV>(s, row0, col, lane, acc_q, acc_y, acc_c);
  for (int d = tid / 4; d < kK; d += kThreads / 4) {
    const float sum = state_dot<kV>(s.s, s.d, d);
    if (tid % 4 == 0) s.sd[d] = sum;
  }
  local_sweeps<kK, kV, kPlain, false>(args, chunk, tile, hv, 0, s, acc_q, acc_y, acc_c);
}

template <int kK, int kV, bool kPlain>
__global__ void __launch_bounds__(kLocalThreads<kK>, 1)
    local_mma_kernel(const __grid_constant__ ChunkArgs args) {
  extern __shared__ __align__(1024) char raw_smem[];
  local_mma_tile<kK, kV, kPlain>(args, blockIdx.x, *reinterpret_cast<LocalSmem<kK, kV>*>(raw_smem));
}

// The same for the chunks of args.retry; any grid.
template <int kK, int kV>
__global__ void __launch_bounds__(kLocalThreads<kK>, 1)
    local_retry_kernel(const __grid_constant__ ChunkArgs args) {
  extern __shared__ __align__(1024) char raw_smem[];
  auto& s = *reinterpret_cast<LocalSmem<kK, kV>*>(raw_smem);
  for_each_retry<kLocalThreads<kK>>(
      args, [&](std::int64_t tile) { local_mma_tile<kK, kV, true>(args, tile, s); });
}

}  // namespace kda::cuda
