// Chunk-local part of the backward with tensor cores for a bounded gate: the lean form of
// local_mma.cuh, and its steps.
//
// With a lower bound >= -7 nat per token no factor relative to the middle row of its 16-row block
// leaves 2^+-81, so one set of factors serves diagonal and off-diagonal blocks: with A_J the decay
// sum at the middle row of block J,
//   rows:    acc = scale do S^T;  for J = 0..rb:  acc = acc 2^(A_J - A_(J-1)) + dN_(rb,J) k 2^(A_J
//   - G) columns: acc = (U D^T) 2^(end - A_3);  for I = 3..rb:  acc += dN_(I,rb)^T q 2^(G - A_I) +
//   ..,
//            acc = acc 2^(A_I - A_(I-1)) while I > rb
// Blocks stay on their SM and walk over tiles: the next tile's operands are copied while this
// tile's elementwise steps run (they need other parts of shared memory), so loads are hidden.
// Inputs: bf16, 16-byte rows, K = V = kD. Outputs as local_mma.cuh.
// Grid: one block of 16 warps (K = 96: 12) per SM, or two of 8. Shared memory at 128: 204 KiB
// (sm_90; smaller GPUs take local_mma.cuh).
#pragma once

#include "cuda/kernels/scan_mma.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/tile/fast_gate.cuh"
#include "cuda/tile/fragment.cuh"

namespace kda::cuda {

// Column groups that the warps of a row block share, of 32 columns (16 at 32), and blocks per SM:
// two smaller blocks wait for their barriers at different times.
template <int kD>
inline constexpr int kBoundedGroups = kD == 32 ? 2 : kD / 32;
template <int kD>
inline constexpr int kBoundedThreads = 128 * kBoundedGroups<kD>;
template <int kD>
inline constexpr int kBoundedBlocks = kD <= 64 ? 2 : 1;

template <int kD>
struct BoundedSmem {
  alignas(256) std::uint16_t s[kD * kPitch<kD>];
  alignas(256) std::uint16_t d[kD * kPitch<kD>];
  alignas(256) std::uint16_t d_o[kC * kPitch<kD>];
  alignas(256) std::uint16_t x[kC * kPitch<kD>];
  alignas(256) std::uint16_t u[kC * kPitch<kD>];  // kt, then U
  union {
    alignas(256) std::uint16_t v[kC * kPitch<kD>];  // then Z
    struct {
      alignas(256) std::uint16_t d_n[kC * kC];
      alignas(256) std::uint16_t p[kC * kC];
    };
  };
  alignas(256) std::uint16_t a[kC * kC];
  alignas(256) std::uint16_t q_up[kC * kPitch<kD>];    // q 2^(G - middle)
  alignas(256) std::uint16_t k_up[kC * kPitch<kD>];    // beta k 2^(G - middle)
  alignas(256) std::uint16_t k_down[kC * kPitch<kD>];  // k 2^(middle - G)
  float total[4][kD];                                  // decay sum of each block
  float middle[4][kD];                                 // decay sum up to the block's middle row
  float chain[5][kD];     // 2^(A_J - A_(J-1)); first from the chunk's start, last to its end
  float enter[4][kD];     // shares of what enters at the chunk's end
  float suffix[4][kD];    // dG sum of each block
  float entering[4][kD];  // what enters a block's last row from later
  float bias[4][kD];      // shares of d_dt_bias
  float sd[kD];           // sum_v S D
  float beta[kC];
  float row_sum[6][4][kC];  // per column group: |q|^2, |k|^2, k.row, X.v, q.dq, k.dk
  float da_log[16];
};

// All operands of a tile but v.
template <int kD>
__device__ inline void load_bounded(const ChunkArgs& args, std::int64_t tile, BoundedSmem<kD>* s) {
  constexpr int kThreads = kBoundedThreads<kD>;
  using Bits = const std::uint16_t*;
  const int HV = args.shape.HV;
  const int hv = static_cast<int>(tile % HV);
  const Chunk chunk = chunk_at(args.map, tile / HV);
  copy_rows<kD, kD, kThreads>(static_cast<Bits>(args.h.data) + tile * kD * kD, kD, kD,
                              smem_address(s->s));
  copy_rows<kC, kD, kThreads>(static_cast<Bits>(args.factors.kt) + tile * kC * kD, kD, kC,
                              smem_address(s->u));
  copy_rows<kC, kC, kThreads>(static_cast<Bits>(args.factors.a) + tile * kC * kC, kC, kC,
                              smem_address(s->a));
  copy_rows<kC, kD, kThreads>(static_cast<Bits>(args.x.data) + tile * kC * kD, kD, kC,
                              smem_address(s->x));
  const Tensor& d_o = args.d_o;
  copy_rows<kC, kD, kThreads>(
      static_cast<Bits>(d_o.data) + chunk.row * d_o.s0 + chunk.begin * d_o.s1 + hv * d_o.s2, d_o.s1,
      d_o.data == nullptr ? 0 : chunk.length, smem_address(s->d_o));
  copy_rows<kD, kD, kThreads>(static_cast<Bits>(args.d_states.data) + tile * kD * kD, kD, kD,
                              smem_address(s->d));
}

// v, and q, k, g as they are, each where its factor tile will be.
template <int kD>
__device__ inline void load_bounded_rows(const ChunkArgs& args, std::int64_t tile,
                                         BoundedSmem<kD>* s) {
  const int hv = static_cast<int>(tile % args.shape.HV);
  const Chunk chunk = chunk_at(args.map, tile / args.shape.HV);
  const auto copy = [&](const Tensor& t, int head, const std::uint16_t* to) {
    copy_rows<kC, kD, kBoundedThreads<kD>>(static_cast<const std::uint16_t*>(t.data) +
                                               chunk.row * t.s0 + chunk.begin * t.s1 + head * t.s2,
                                           t.s1, chunk.length, smem_address(to));
  };
  copy(args.in.q, hv / args.shape.G, s->q_up);
  copy(args.in.k, hv / args.shape.G, s->k_up);
  copy(args.in.g, hv, s->k_down);
  const Tensor& v = args.in.v;
  copy_rows<kC, kD, kBoundedThreads<kD>>(
      static_cast<const std::uint16_t*>(v.data) + chunk.row * v.s0 + chunk.begin * v.s1 + hv * v.s2,
      v.s1, chunk.length, smem_address(s->v));
}

template <int kD>
__global__ void __launch_bounds__(kBoundedThreads<kD>, kBoundedBlocks<kD>)
    local_bounded_mma_kernel(const __grid_constant__ ChunkArgs args) {
  extern __shared__ __align__(1024) char raw_smem[];
  auto& s = *reinterpret_cast<BoundedSmem<kD>*>(raw_smem);
  constexpr int kThreads = kBoundedThreads<kD>;
  constexpr int kGroups = kBoundedGroups<kD>;
  constexpr int kT = kD / 8 / kGroups;  // n-tiles per warp: 2 or 4
  const int HV = args.shape.HV;
  int tid = threadIdx.x;  // these are forgotten between steps: addresses made of them fill the
  const int warp = tid / 32;
  int lane = tid % 32;  // registers
  const int rb = warp / kGroups;
  const int cq = warp % kGroups;
  const int r = lane / 4;
  const int c = lane % 4;
  const int row0 = 16 * rb;
  const int i0 = row0 + r;
  const int col = 8 * kT * cq;  // the warp's first column, of V in steps 1 and 2, of K later
  const int d0 = col + 2 * c;   // the thread's first column
  std::uint32_t first_pair = pair_address<kD>(0, i0, d0);
  // Byte offset, in a tile of kD columns, of the thread's pair in row i0 + 8 row, columns d0 + 8 n.
  const auto pair_at = [&first_pair](int row, int n) {
    return (first_pair ^ static_cast<std::uint32_t>(16 * n)) +
           static_cast<std::uint32_t>(16 * kPitch<kD> * row);
  };
  const Inputs& in = args.in;
  const std::int64_t num_tiles = args.map.num_chunks * HV;
  const float bound = in.gate.lower_bound * kLog2E;

  std::int64_t tile = blockIdx.x;
  if (tile < num_tiles) {
    load_bounded<kD>(args, tile, &s);
    load_bounded_rows<kD>(args, tile, &s);
    ptx::cp_async_commit();
  }
#pragma unroll 1
  for (; tile < num_tiles; tile += gridDim.x) {
    const std::int64_t next = tile + gridDim.x;
    const int hv = static_cast<int>(tile % HV);
    const int h = hv / args.shape.G;
    const Chunk chunk = chunk_at(args.map, tile / HV);
    if (tid < kC) s.beta[tid] = args.factors.beta[tile * kC + tid];
    ptx::cp_async_wait<0>();
    __syncthreads();  // operands and beta before step 1

    // 1. Z = beta (v - kt S), U = A Z.
    lane = ptx::forgotten(lane);
    tid = ptx::forgotten(tid);
    first_pair = ptx::forgotten(first_pair);
    const float beta[2] = {s.beta[i0], s.beta[i0 + 8]};
    std::uint32_t v_pair[kT][2];
    {
      float z[kT][4];
      clear(z);
      multiply_rows<kD, kD, kT>(smem_address(s.u), row0, smem_address(s.s), col, lane, z);
#pragma unroll
      for (int t = 0; t < kT; ++t) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const std::uint32_t at = (smem_address(s.v) + pair_at(row, t));
          const std::uint32_t v = ptx::load_shared_pair(at);
          v_pair[t][row] = v;
          ptx::store_shared_pair(at, pack_bf16(beta[row] * (low_of(v) - z[t][2 * row]),
                                               beta[row] * (high_of(v) - z[t][2 * row + 1])));
        }
      }
      __syncthreads();  // Z before its readers; kt read before U takes its place
      clear(z);
#pragma unroll 1
      for (int J = 0; J <= rb; ++J) {
        std::uint32_t a[4];
        ptx::ldmatrix(a, block_address<kC>(smem_address(s.a), row0, 16 * J, lane));
        multiply_block<kD, kT>(a, smem_address(s.v), 16 * J, col, lane, z);
      }
#pragma unroll
      for (int t = 0; t < kT; ++t) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          ptx::store_shared_pair(smem_address(s.u) + pair_at(row, t),
                                 pack_bf16(z[t][2 * row], z[t][2 * row + 1]));
        }
      }
    }
    __syncthreads();  // U before step 2; Z read before dN and P take its place

    // 2. dN and P, one 16x16 block per warp; X.v for dbeta.
    lane = ptx::forgotten(lane);
    tid = ptx::forgotten(tid);
    first_pair = ptx::forgotten(first_pair);
    {
      float sum[2] = {};
#pragma unroll
      for (int t = 0; t < kT; ++t) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const std::uint32_t x = ptx::load_shared_pair(smem_address(s.x) + pair_at(row, t));
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
        for (int k = 0; k < kD / 16; ++k) {
          std::uint32_t a[4];
          std::uint32_t x[4];
          std::uint32_t b[4];
          ptx::ldmatrix(a, block_address<kD>(smem_address(s.d_o), row0, 16 * k, lane));
          ptx::ldmatrix(x, block_address<kD>(smem_address(s.x), row0, 16 * k, lane));
          ptx::ldmatrix(b, block_address<kD>(smem_address(s.u), 16 * J, 16 * k, lane));
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

    // 3. Products with S and D.
    lane = ptx::forgotten(lane);
    tid = ptx::forgotten(tid);
    first_pair = ptx::forgotten(first_pair);
    float acc_q[kT][4];
    float acc_y[kT][4];
    float acc_c[kT][4];
    clear(acc_q);
    clear(acc_y);
    clear(acc_c);
#pragma unroll
    for (int step = 0; step < kD / 16; ++step) {
      std::uint32_t a[4];
      std::uint32_t x[4];
      ptx::ldmatrix(a, block_address<kD>(smem_address(s.d_o), row0, 16 * step, lane));
      ptx::ldmatrix(x, block_address<kD>(smem_address(s.x), row0, 16 * step, lane));
#pragma unroll
      for (int p = 0; p < kT / 2; ++p) {
        std::uint32_t b[4];
        ptx::ldmatrix(b, block_address<kD>(smem_address(s.s), col + 16 * p, 16 * step, lane));
        ptx::mma_bf16(acc_q[2 * p], a, b[0], b[2]);
        ptx::mma_bf16(acc_q[2 * p + 1], a, b[1], b[3]);
        ptx::mma_bf16(acc_y[2 * p], x, b[0], b[2]);
        ptx::mma_bf16(acc_y[2 * p + 1], x, b[1], b[3]);
      }
      ptx::ldmatrix(a, block_address<kD>(smem_address(s.u), row0, 16 * step, lane));
#pragma unroll
      for (int p = 0; p < kT / 2; ++p) {
        std::uint32_t b[4];
        ptx::ldmatrix(b, block_address<kD>(smem_address(s.d), col + 16 * p, 16 * step, lane));
        ptx::mma_bf16(acc_c[2 * p], a, b[0], b[2]);
        ptx::mma_bf16(acc_c[2 * p + 1], a, b[1], b[3]);
      }
    }
#pragma unroll
    for (int d = tid / 4; d < kD; d += kThreads / 4) {
      float sum = 0.0F;
#pragma unroll
      for (int piece = 0; piece < kD / 32; ++piece) {
        const std::uint32_t at = swizzled<kD>(d, 4 * piece + tid % 4);
        const uint4 a = ptx::load_shared(smem_address(s.s) + at);
        const uint4 b = ptx::load_shared(smem_address(s.d) + at);
        sum += low_of(a.x) * low_of(b.x) + high_of(a.x) * high_of(b.x);
        sum += low_of(a.y) * low_of(b.y) + high_of(a.y) * high_of(b.y);
        sum += low_of(a.z) * low_of(b.z) + high_of(a.z) * high_of(b.z);
        sum += low_of(a.w) * low_of(b.w) + high_of(a.w) * high_of(b.w);
      }
      sum = quad_sum(sum);
      if (tid % 4 == 0) s.sd[d] = sum;
    }
    const bool valid[2] = {i0 < chunk.length, i0 + 8 < chunk.length};
    std::uint32_t q_raw[2][kT];
    std::uint32_t k_raw[2][kT];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int n = 0; n < kT; ++n) {
        q_raw[row][n] = ptx::load_shared_pair(smem_address(s.q_up) + pair_at(row, n));
        k_raw[row][n] = ptx::load_shared_pair(smem_address(s.k_up) + pair_at(row, n));
      }
    }
    if (in.l2norm) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float qq = 0.0F;
        float kk = 0.0F;
#pragma unroll
        for (int n = 0; n < kT; ++n) {
          qq += low_of(q_raw[row][n]) * low_of(q_raw[row][n]) +
                high_of(q_raw[row][n]) * high_of(q_raw[row][n]);
          kk += low_of(k_raw[row][n]) * low_of(k_raw[row][n]) +
                high_of(k_raw[row][n]) * high_of(k_raw[row][n]);
        }
        qq = quad_sum(qq);
        kk = quad_sum(kk);
        if (c == 0) {
          s.row_sum[0][cq][i0 + 8 * row] = qq;
          s.row_sum[1][cq][i0 + 8 * row] = kk;
        }
      }
    }
    __syncthreads();  // row sums, dN, P before their readers; S, D, do, X, U, A are read
    if (next < num_tiles) load_bounded<kD>(args, next, &s);
    ptx::cp_async_commit();

    // 4. Unit q and k, decay sums relative to the block's middle row, factor tiles.
    first_pair = ptx::forgotten(first_pair);
    float l[2][kT][2];
    const float exp_a = in.gate.a_log != nullptr ? expf(__ldg(in.gate.a_log + hv)) : 1.0F;
    const float slope = -kLog2E * exp_a;
    const float* dt_bias = in.gate.dt_bias == nullptr
                               ? nullptr
                               : in.gate.dt_bias + static_cast<std::int64_t>(hv) * kD + d0;
    const auto rstd = [&](int which, int row) {
      return in.l2norm ? row_rstd<kGroups>(s.row_sum[which], i0 + 8 * row) : 1.0F;
    };
#pragma unroll
    for (int n = 0; n < kT; ++n) {
      const float b0 = dt_bias != nullptr ? __ldg(dt_bias + 8 * n) : 0.0F;
      const float b1 = dt_bias != nullptr ? __ldg(dt_bias + 8 * n + 1) : 0.0F;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const std::uint32_t g = ptx::load_shared_pair(smem_address(s.k_down) + pair_at(row, n));
        const float x = ptx::exp2_approx(slope * (low_of(g) + b0));
        const float y = ptx::exp2_approx(slope * (high_of(g) + b1));
        l[row][n][0] = valid[row] ? bound * ptx::rcp_approx(1.0F + x) : 0.0F;
        l[row][n][1] = valid[row] ? bound * ptx::rcp_approx(1.0F + y) : 0.0F;
      }
    }
    scan_fragment<kT>(r, c, l);
    const float rstd_q[2] = {rstd(0, 0), rstd(0, 1)};
    const float rstd_k[2] = {rstd(1, 0), rstd(1, 1)};
#pragma unroll
    for (int n = 0; n < kT; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float middle = __shfl_sync(0xffffffffU, l[1][n][e], c);
        if (r == 7) {
          s.total[rb][d0 + 8 * n + e] = l[1][n][e];
          s.middle[rb][d0 + 8 * n + e] = middle;
        }
        l[0][n][e] -= middle;
        l[1][n][e] -= middle;
      }
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float up0 = ptx::exp2_approx(l[row][n][0]);
        const float up1 = ptx::exp2_approx(l[row][n][1]);
        const float down0 = ptx::exp2_approx(-l[row][n][0]);
        const float down1 = ptx::exp2_approx(-l[row][n][1]);
        const std::uint32_t q = scale_pair(q_raw[row][n], rstd_q[row], rstd_q[row]);
        const std::uint32_t k = scale_pair(k_raw[row][n], rstd_k[row], rstd_k[row]);
        const float k0 = low_of(k);
        const float k1 = high_of(k);
        const std::uint32_t at = pair_at(row, n);
        ptx::store_shared_pair(smem_address(s.q_up) + at,
                               pack_bf16(low_of(q) * up0, high_of(q) * up1));
        ptx::store_shared_pair(smem_address(s.k_up) + at,
                               pack_bf16(beta[row] * k0 * up0, beta[row] * k1 * up1));
        ptx::store_shared_pair(smem_address(s.k_down) + at, pack_bf16(k0 * down0, k1 * down1));
      }
    }
    __syncthreads();  // factor tiles and block sums before their readers
    tid = ptx::forgotten(tid);
    for (int e = tid; e < 5 * kD; e += kThreads) {
      const int J = e / kD;
      const int d = e % kD;
      const float from = J == 0 ? 0.0F : s.total[J - 1][d] - s.middle[J - 1][d];
      s.chain[J][d] = ptx::exp2_approx(from + (J == 4 ? 0.0F : s.middle[J][d]));
    }
    __syncthreads();  // chain factors before the sweeps

    // 5. Sweeps. dG is summed from the rounded factors, as in local_mma.cuh.
    lane = ptx::forgotten(lane);
    tid = ptx::forgotten(tid);
    first_pair = ptx::forgotten(first_pair);
#pragma unroll
    for (int n = 0; n < kT; ++n) {  // what enters at the chunk's end
      const std::uint32_t k0 = ptx::load_shared_pair(smem_address(s.k_down) + pair_at(0, n));
      const std::uint32_t k1 = ptx::load_shared_pair(smem_address(s.k_down) + pair_at(1, n));
      float x = column_sum(low_of(k0) * acc_c[n][0] + low_of(k1) * acc_c[n][2]);
      float y = column_sum(high_of(k0) * acc_c[n][1] + high_of(k1) * acc_c[n][3]);
      if (r == 0) {
#pragma unroll 1
        for (int I = 4; I > rb; --I) {
          x *= s.chain[I][d0 + 8 * n];
          y *= s.chain[I][d0 + 8 * n + 1];
        }
        s.enter[rb][d0 + 8 * n] = x;
        s.enter[rb][d0 + 8 * n + 1] = y;
      }
    }
#pragma unroll 1
    for (int I = 3; I >= rb; --I) {
      std::uint32_t a[4];
      scale_channels<kT>(s.chain[I + 1], d0, acc_c);
      load_transposed(a, smem_address(s.d_n), 16 * I, row0, lane);
      multiply_block<kD, kT>(a, smem_address(s.q_up), 16 * I, col, lane, acc_c);
      load_transposed(a, smem_address(s.p), 16 * I, row0, lane);
      multiply_block<kD, kT>(a, smem_address(s.k_up), 16 * I, col, lane, acc_c);
    }
#pragma unroll
    for (int n = 0; n < kT; ++n) {
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        acc_q[n][x] *= in.scale;
        acc_y[n][x] = -acc_y[n][x];
      }
    }
#pragma unroll 1
    for (int J = 0; J <= rb; ++J) {
      std::uint32_t a[4];
      scale_channels<kT>(s.chain[J], d0, acc_q);
      scale_channels<kT>(s.chain[J], d0, acc_y);
      ptx::ldmatrix(a, block_address<kC>(smem_address(s.d_n), row0, 16 * J, lane));
      multiply_block<kD, kT>(a, smem_address(s.k_down), 16 * J, col, lane, acc_q);
      ptx::ldmatrix(a, block_address<kC>(smem_address(s.p), row0, 16 * J, lane));
      multiply_block<kD, kT>(a, smem_address(s.k_down), 16 * J, col, lane, acc_y);
    }
    first_pair = ptx::forgotten(first_pair);
    // q and k once more: kept since step 4 they would not fit into registers.
    std::uint32_t q[2][kT];
    std::uint32_t k[2][kT];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const auto* q_from = static_cast<const std::uint16_t*>(in.q.data) + chunk.row * in.q.s0 +
                           (chunk.begin + i0 + 8 * row) * in.q.s1 + h * in.q.s2 + d0;
      const auto* k_from = static_cast<const std::uint16_t*>(in.k.data) + chunk.row * in.k.s0 +
                           (chunk.begin + i0 + 8 * row) * in.k.s1 + h * in.k.s2 + d0;
#pragma unroll
      for (int n = 0; n < kT; ++n) {
        const auto load = [&](const std::uint16_t* from) {
          return valid[row] ? __ldg(reinterpret_cast<const std::uint32_t*>(from + 8 * n)) : 0U;
        };
        q[row][n] = load(q_from);
        k[row][n] = load(k_from);
      }
    }
    float d_g[2][kT][2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int n = 0; n < kT; ++n) {
        const std::uint32_t at = pair_at(row, n);
        const std::uint32_t q_up = ptx::load_shared_pair(smem_address(s.q_up) + at);
        const std::uint32_t k_up = ptx::load_shared_pair(smem_address(s.k_up) + at);
        const std::uint32_t k_down = ptx::load_shared_pair(smem_address(s.k_down) + at);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int x = 2 * row + e;
          const auto part = [e](std::uint32_t pair) {
            return e == 0 ? low_of(pair) : high_of(pair);
          };
          d_g[row][n][e] =
              part(q_up) * acc_q[n][x] + part(k_up) * acc_y[n][x] - part(k_down) * acc_c[n][x];
          const float up = ptx::exp2_approx(l[row][n][e]);
          const float down = ptx::exp2_approx(-l[row][n][e]);
          acc_y[n][x] *= up;
          acc_q[n][x] *= up;                                           // dq
          acc_c[n][x] = beta[row] * acc_y[n][x] + acc_c[n][x] * down;  // dk
        }
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float unit_q = rstd(0, row);
      const float unit_k = rstd(1, row);
      float k_y = 0.0F;
      float q_dot = 0.0F;
      float k_dot = 0.0F;
#pragma unroll
      for (int n = 0; n < kT; ++n) {
        q[row][n] = scale_pair(q[row][n], unit_q, unit_q);
        k[row][n] = scale_pair(k[row][n], unit_k, unit_k);
        const int x = 2 * row;
        k_y += low_of(k[row][n]) * acc_y[n][x] + high_of(k[row][n]) * acc_y[n][x + 1];
        q_dot += low_of(q[row][n]) * acc_q[n][x] + high_of(q[row][n]) * acc_q[n][x + 1];
        k_dot += low_of(k[row][n]) * acc_c[n][x] + high_of(k[row][n]) * acc_c[n][x + 1];
      }
      k_y = quad_sum(k_y);
      q_dot = quad_sum(q_dot);
      k_dot = quad_sum(k_dot);
      if (c == 0) {
        s.row_sum[2][cq][i0 + 8 * row] = k_y;
        s.row_sum[4][cq][i0 + 8 * row] = q_dot;
        s.row_sum[5][cq][i0 + 8 * row] = k_dot;
      }
    }
    suffix_scan_fragment<kT>(r, c, d_g);
    if (r == 0) {
#pragma unroll
      for (int n = 0; n < kT; ++n) {
        s.suffix[rb][d0 + 8 * n] = d_g[0][n][0];
        s.suffix[rb][d0 + 8 * n + 1] = d_g[0][n][1];
      }
    }
    std::uint32_t g[2][kT];  // again, for the gate's backward: its tile has been overwritten
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const auto* from = static_cast<const std::uint16_t*>(in.g.data) + chunk.row * in.g.s0 +
                         (chunk.begin + i0 + 8 * row) * in.g.s1 + hv * in.g.s2 + d0;
#pragma unroll
      for (int n = 0; n < kT; ++n) {
        g[row][n] = valid[row] ? __ldg(reinterpret_cast<const std::uint32_t*>(from + 8 * n)) : 0;
      }
    }
    __syncthreads();  // block sums and row sums before their readers; dN, P, factor tiles are read
    if (next < num_tiles) load_bounded_rows<kD>(args, next, &s);
    ptx::cp_async_commit();
    for (int e = tid; e < 4 * kD; e += kThreads) {
      const int block = e / kD;
      const int d = e % kD;
      const float end = s.total[0][d] + s.total[1][d] + s.total[2][d] + s.total[3][d];
      float sum = ptx::exp2_approx(end) * s.sd[d] +
                  (s.enter[0][d] + s.enter[1][d] + s.enter[2][d] + s.enter[3][d]);
      for (int J = 3; J > block; --J)
        sum += s.suffix[J][d];
      s.entering[block][d] = sum;
    }

    // 6. Outputs; those of q and k do not wait for the gate's sums.
    tid = ptx::forgotten(tid);
    const std::int64_t token0 = chunk.row * args.shape.T + chunk.begin;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (!valid[row]) continue;
      const int i = i0 + 8 * row;
      if (args.dq_part != nullptr) {
        const std::int64_t at = ((token0 + i) * HV + hv) * kD + d0;
#pragma unroll
        for (int n = 0; n < kT; ++n) {
          *reinterpret_cast<float2*>(args.dq_part + at + 8 * n) =
              make_float2(acc_q[n][2 * row], acc_q[n][2 * row + 1]);
          *reinterpret_cast<float2*>(args.dk_part + at + 8 * n) =
              make_float2(acc_c[n][2 * row], acc_c[n][2 * row + 1]);
        }
        continue;
      }
      float q_dot = 0.0F;
      float k_dot = 0.0F;
      if (in.l2norm) {
        q_dot = row_total<kGroups>(s.row_sum[4], i);
        k_dot = row_total<kGroups>(s.row_sum[5], i);
      }
      const std::int64_t t = chunk.begin + i;
      if (args.dq.data != nullptr) {
        auto* to = static_cast<std::uint16_t*>(args.dq.data) + chunk.row * args.dq.s0 +
                   t * args.dq.s1 + h * args.dq.s2 + d0;
#pragma unroll
        for (int n = 0; n < kT; ++n) {
          *reinterpret_cast<std::uint32_t*>(to + 8 * n) =
              pack_bf16(rstd(0, row) * (acc_q[n][2 * row] - q_dot * low_of(q[row][n])),
                        rstd(0, row) * (acc_q[n][2 * row + 1] - q_dot * high_of(q[row][n])));
        }
      }
      if (args.dk.data != nullptr) {
        auto* to = static_cast<std::uint16_t*>(args.dk.data) + chunk.row * args.dk.s0 +
                   t * args.dk.s1 + h * args.dk.s2 + d0;
#pragma unroll
        for (int n = 0; n < kT; ++n) {
          *reinterpret_cast<std::uint32_t*>(to + 8 * n) =
              pack_bf16(rstd(1, row) * (acc_c[n][2 * row] - k_dot * low_of(k[row][n])),
                        rstd(1, row) * (acc_c[n][2 * row + 1] - k_dot * high_of(k[row][n])));
        }
      }
    }
    if (tid < chunk.length && args.dbeta.data != nullptr) {
      float sum = row_total<kGroups>(s.row_sum[2], tid) + row_total<kGroups>(s.row_sum[3], tid);
      if (in.beta_is_logit) sum *= s.beta[tid] * (1.0F - s.beta[tid] / in.beta_max);
      store(args.dbeta,
            chunk.row * args.dbeta.s0 + (chunk.begin + tid) * args.dbeta.s1 + hv * args.dbeta.s2,
            sum);
    }
    __syncthreads();  // what enters each block before its readers
    float da_log = 0.0F;
#pragma unroll
    for (int n = 0; n < kT; ++n) {
      const float2 later = *reinterpret_cast<const float2*>(&s.entering[rb][d0 + 8 * n]);
      const float b0 = dt_bias != nullptr ? __ldg(dt_bias + 8 * n) : 0.0F;
      const float b1 = dt_bias != nullptr ? __ldg(dt_bias + 8 * n + 1) : 0.0F;
      float dbias[2] = {};
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float z0 = low_of(g[row][n]) + b0;
        const float z1 = high_of(g[row][n]) + b1;
        const float factor = in.gate.lower_bound * exp_a;
        const float x0 = valid[row]
                             ? (d_g[row][n][0] + later.x) * factor * fast_sigmoid_slope(slope * z0)
                             : 0.0F;
        const float x1 = valid[row]
                             ? (d_g[row][n][1] + later.y) * factor * fast_sigmoid_slope(slope * z1)
                             : 0.0F;
        da_log += x0 * z0 + x1 * z1;
        dbias[0] += x0;
        dbias[1] += x1;
        if (valid[row] && args.dg.data != nullptr) {
          auto* to = static_cast<std::uint16_t*>(args.dg.data) + chunk.row * args.dg.s0 +
                     (chunk.begin + i0 + 8 * row) * args.dg.s1 + hv * args.dg.s2 + d0;
          *reinterpret_cast<std::uint32_t*>(to + 8 * n) = pack_bf16(x0, x1);
        }
      }
      if (args.dbias_part != nullptr) {
        const float sum0 = column_sum(dbias[0]);
        const float sum1 = column_sum(dbias[1]);
        if (r == 0) {
          s.bias[rb][d0 + 8 * n] = sum0;
          s.bias[rb][d0 + 8 * n + 1] = sum1;
        }
      }
    }
    if (args.da_log_part != nullptr) {
      da_log = warp_sum(da_log);
      if (lane == 0) s.da_log[warp] = da_log;
    }
    __syncthreads();  // shares of the parameter gradients before their sums; beta is read
    if (args.dbias_part != nullptr && tid < kD) {
      args.dbias_part[tile * kD + tid] =
          s.bias[0][tid] + s.bias[1][tid] + s.bias[2][tid] + s.bias[3][tid];
    }
    if (args.da_log_part != nullptr && tid == 0) {
      float sum = 0.0F;
      for (int w = 0; w < kThreads / 32; ++w)
        sum += s.da_log[w];
      args.da_log_part[tile] = sum;
    }
  }
}

}  // namespace kda::cuda
