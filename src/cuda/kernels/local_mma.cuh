// Chunk-local part of the backward with tensor cores, one kernel: the math of local_simt.cuh.
//
// In order, each step on the tiles that the one before left in shared memory:
//   1. U = A (beta (v - kt S))
//   2. dN = scale tril(do U^T), P = -strict_tril(X U^T)
//   3. accumulators do S^T, -X S^T (relative to the chunk's start), U D^T (to its end), sum_v S D
//   4. factors of q and k: per 16-row block relative to its ends (off-diagonal blocks, all <= 1)
//   and
//      to its middle row (diagonal blocks, decays clamped at 2^-15 per token, as in prep_mma.cuh)
//   5. sweeps: rows J = 0.. and columns I = 3.. are added to the accumulators of step 3 by Horner's
//      rule in the block decays, so each product with S and D is scaled once
//   6. dq, dk (norm's backward), dg (suffix sum, gate's backward), dbeta, partial sums
// Inputs: q, k, g, v, do; kt, a, beta (prep); S (h), D, X (scans). Outputs: see step 6; with G > 1
// dq and dk go to f32 partials for the fold. Grid: num_chunks * HV blocks of 16 warps; warp (rb,
// cq) owns rows 16 rb .. + 15 and a quarter of the columns, in C fragment layout throughout. Shared
// memory at K = V = 128: 96 KiB (S, D, do, X; later six factor tiles) + 16 (kt, later U) + 16 (v,
// Z, later dN and P) + 8 (A) + 9 KiB: one block per SM.
#pragma once

#include "cuda/kernels/prep_mma.cuh"
#include "cuda/kernels/scan_mma.cuh"
#include "cuda/tile/fragment.cuh"

namespace kda::cuda {

inline constexpr int kLocalThreads = 512;

template <int kK, int kV>
struct LocalSmem {
  union {
    struct {
      alignas(256) std::uint16_t s[kK * kV];
      alignas(256) std::uint16_t d[kK * kV];
      alignas(256) std::uint16_t d_o[kC * kV];
      alignas(256) std::uint16_t x[kC * kV];
    };
    struct {
      alignas(256) std::uint16_t k_col[kC * kK];   // k 2^(end of block - G)
      alignas(256) std::uint16_t q_row[kC * kK];   // q 2^(G - start of block)
      alignas(256) std::uint16_t k_row[kC * kK];   // beta k 2^(G - start of block)
      alignas(256) std::uint16_t k_down[kC * kK];  // k 2^(middle - G)
      alignas(256) std::uint16_t q_up[kC * kK];    // q 2^(G - middle)
      alignas(256) std::uint16_t k_up[kC * kK];    // beta k 2^(G - middle)
    };
  };
  alignas(256) std::uint16_t u[kC * (kK > kV ? kK : kV)];  // kt, then U
  union {
    alignas(256) std::uint16_t v[kC * kV];  // then Z
    struct {
      alignas(256) std::uint16_t d_n[kC * kC];
      alignas(256) std::uint16_t p[kC * kC];
    };
  };
  alignas(256) std::uint16_t a[kC * kC];
  float total[4][kK];   // decay sum of each block
  float across[4][kK];  // 2^total
  float enter[4][kK];   // shares of what enters at the chunk's end
  float suffix[4][kK];  // dG sum of each block
  float bias[4][kK];    // shares of d_dt_bias
  float sd[kK];         // sum_v S D
  float beta[kC];
  float row_sum[6][4][kC];  // per column quarter: |q|^2, |k|^2, k.row, X.v, q.dq, k.dk
  float da_log[16];
};

template <int kK, int kV, bool kPlain>
__global__ void __launch_bounds__(kLocalThreads, 1)
    local_mma_kernel(const __grid_constant__ ChunkArgs args) {
  extern __shared__ __align__(1024) char raw_smem[];
  auto& s = *reinterpret_cast<LocalSmem<kK, kV>*>(raw_smem);
  constexpr int kTilesK = kK / 32;  // n-tiles per warp
  constexpr int kTilesV = kV / 32;
  const int HV = args.shape.HV;
  const int K = args.shape.K;
  const int V = args.shape.V;
  const std::int64_t tile = blockIdx.x;
  const std::int64_t chunk_index = tile / HV;
  const int hv = static_cast<int>(tile % HV);
  const int h = hv / args.shape.G;
  const Chunk chunk = chunk_at(args.map, chunk_index);
  if (chunk.length <= 0) return;
  const int tid = threadIdx.x;
  const int warp = tid / 32;
  const int lane = tid % 32;
  const int rb = warp / 4;
  const int cq = warp % 4;
  const int r = lane / 4;
  const int c = lane % 4;
  const int row0 = 16 * rb;
  const int i0 = row0 + r;
  const Inputs& in = args.in;

  // Loads, in the order in which they are needed.
  copy_matrix<kK, kV, kLocalThreads, kPlain>(args.h, chunk_index * args.h.s0 + hv * args.h.s1,
                                             args.h.s2, K, V, smem_address(s.s));
  copy_tile<kK, kLocalThreads>(static_cast<const std::uint16_t*>(args.factors.kt) + tile * kC * kK,
                               smem_address(s.u));
  copy_tile<kC, kLocalThreads>(static_cast<const std::uint16_t*>(args.factors.a) + tile * kC * kC,
                               smem_address(s.a));
  copy_matrix<kC, kV, kLocalThreads, kPlain>(
      in.v, chunk.row * in.v.s0 + chunk.begin * in.v.s1 + hv * in.v.s2, in.v.s1, chunk.length, V,
      smem_address(s.v));
  ptx::cp_async_commit();
  copy_matrix<kC, kV, kLocalThreads, kPlain>(args.x, chunk_index * args.x.s0 + hv * args.x.s1,
                                             args.x.s2, kC, V, smem_address(s.x));
  const Tensor& d_o = args.d_o;
  copy_matrix<kC, kV, kLocalThreads, kPlain>(
      d_o, chunk.row * d_o.s0 + chunk.begin * d_o.s1 + hv * d_o.s2, d_o.s1,
      d_o.data == nullptr ? 0 : chunk.length, V, smem_address(s.d_o));
  ptx::cp_async_commit();
  copy_matrix<kK, kV, kLocalThreads, kPlain>(args.d_states,
                                             chunk_index * args.d_states.s0 + hv * args.d_states.s1,
                                             args.d_states.s2, K, V, smem_address(s.d));
  ptx::cp_async_commit();
  if (tid < kC) s.beta[tid] = args.factors.beta[tile * kC + tid];
  ptx::cp_async_wait<2>();
  __syncthreads();  // S, kt, A, v, beta before step 1

  // 1. Z = beta (v - kt S), U = A Z.
  const int v_col = 8 * kTilesV * cq;
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
        const std::uint32_t at =
            pair_address<kV>(smem_address(s.v), i0 + 8 * row, v_col + 8 * t + 2 * c);
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
        ptx::store_shared_pair(
            pair_address<kV>(smem_address(s.u), i0 + 8 * row, v_col + 8 * t + 2 * c),
            pack_bf16(z[t][2 * row], z[t][2 * row + 1]));
      }
    }
  }
  ptx::cp_async_wait<1>();
  __syncthreads();  // U, X, do before step 2; Z read before dN and P take its place

  // 2. dN and P, one 16x16 block per warp; X.v for dbeta.
  {
    float sum[2] = {};
#pragma unroll
    for (int t = 0; t < kTilesV; ++t) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const std::uint32_t x = ptx::load_shared_pair(
            pair_address<kV>(smem_address(s.x), i0 + 8 * row, v_col + 8 * t + 2 * c));
        sum[row] += low_of(x) * low_of(v_pair[t][row]) + high_of(x) * high_of(v_pair[t][row]);
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float all = quad_sum(sum[row]);
      if (c == 0) s.row_sum[3][cq][i0 + 8 * row] = all;
    }
    if (cq <= rb) {
      float d_n[2][4] = {};
      float p[2][4] = {};
#pragma unroll
      for (int k = 0; k < kV / 16; ++k) {
        std::uint32_t a[4];
        std::uint32_t x[4];
        std::uint32_t b[4];
        ptx::ldmatrix(a, block_address<kV>(smem_address(s.d_o), row0, 16 * k, lane));
        ptx::ldmatrix(x, block_address<kV>(smem_address(s.x), row0, 16 * k, lane));
        ptx::ldmatrix(b, block_address<kV>(smem_address(s.u), 16 * cq, 16 * k, lane));
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
          const int j = 16 * cq + 8 * t + 2 * c;
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
  const int col = 8 * kTilesK * cq;  // the warp's first channel
  const int d0 = col + 2 * c;        // the thread's first channel
  float acc_q[kTilesK][4];
  float acc_y[kTilesK][4];
  float acc_c[kTilesK][4];
  clear(acc_q);
  clear(acc_y);
  clear(acc_c);
#pragma unroll
  for (int k = 0; k < kV / 16; ++k) {
    std::uint32_t a[4];
    std::uint32_t x[4];
    std::uint32_t u[4];
    ptx::ldmatrix(a, block_address<kV>(smem_address(s.d_o), row0, 16 * k, lane));
    ptx::ldmatrix(x, block_address<kV>(smem_address(s.x), row0, 16 * k, lane));
    ptx::ldmatrix(u, block_address<kV>(smem_address(s.u), row0, 16 * k, lane));
#pragma unroll
    for (int p = 0; p < kTilesK / 2; ++p) {
      std::uint32_t b[4];
      ptx::ldmatrix(b, block_address<kV>(smem_address(s.s), col + 16 * p, 16 * k, lane));
      ptx::mma_bf16(acc_q[2 * p], a, b[0], b[2]);
      ptx::mma_bf16(acc_q[2 * p + 1], a, b[1], b[3]);
      ptx::mma_bf16(acc_y[2 * p], x, b[0], b[2]);
      ptx::mma_bf16(acc_y[2 * p + 1], x, b[1], b[3]);
      ptx::ldmatrix(b, block_address<kV>(smem_address(s.d), col + 16 * p, 16 * k, lane));
      ptx::mma_bf16(acc_c[2 * p], u, b[0], b[2]);
      ptx::mma_bf16(acc_c[2 * p + 1], u, b[1], b[3]);
    }
  }
  for (int d = tid / 4; d < kK; d += kLocalThreads / 4) {
    float sum = 0.0F;
#pragma unroll
    for (int piece = tid % 4; piece < kV / 8; piece += 4) {
      const uint4 a = ptx::load_shared(smem_address(s.s) + swizzled<kV>(d, piece));
      const uint4 b = ptx::load_shared(smem_address(s.d) + swizzled<kV>(d, piece));
      sum += low_of(a.x) * low_of(b.x) + high_of(a.x) * high_of(b.x);
      sum += low_of(a.y) * low_of(b.y) + high_of(a.y) * high_of(b.y);
      sum += low_of(a.z) * low_of(b.z) + high_of(a.z) * high_of(b.z);
      sum += low_of(a.w) * low_of(b.w) + high_of(a.w) * high_of(b.w);
    }
    sum = quad_sum(sum);
    if (tid % 4 == 0) s.sd[d] = sum;
  }

  // 4. q and k (normalised), decay sums inside the block.
  std::uint32_t q[2][kTilesK];
  std::uint32_t k[2][kTilesK];
  float l[2][kTilesK][2];
  const float exp_a = in.gate.a_log != nullptr ? expf(in.gate.a_log[hv]) : 1.0F;
  float rstd_q[2] = {1.0F, 1.0F};
  float rstd_k[2] = {1.0F, 1.0F};
  std::int64_t g_at[2];
  bool valid[2];
  {
    float2 qf[2][kTilesK];
    float2 kf[2][kTilesK];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int i = i0 + 8 * row;
      valid[row] = i < chunk.length;
      const std::int64_t t = chunk.begin + i;
      const std::int64_t q_at = chunk.row * in.q.s0 + t * in.q.s1 + h * in.q.s2;
      const std::int64_t k_at = chunk.row * in.k.s0 + t * in.k.s1 + h * in.k.s2;
      g_at[row] = chunk.row * in.g.s0 + t * in.g.s1 + hv * in.g.s2;
      float qq = 0.0F;
      float kk = 0.0F;
#pragma unroll
      for (int n = 0; n < kTilesK; ++n) {
        const int d = d0 + 8 * n;
        qf[row][n] = kf[row][n] = make_float2(0.0F, 0.0F);
        float2 g = make_float2(0.0F, 0.0F);
        if (valid[row]) {
          qf[row][n] = load_pair<kPlain>(in.q, q_at, d, K);
          kf[row][n] = load_pair<kPlain>(in.k, k_at, d, K);
          g = load_pair<kPlain>(in.g, g_at[row], d, K);
        }
        qq += qf[row][n].x * qf[row][n].x + qf[row][n].y * qf[row][n].y;
        kk += kf[row][n].x * kf[row][n].x + kf[row][n].y * kf[row][n].y;
        l[row][n][0] = g.x;
        l[row][n][1] = g.y;
      }
      if (in.l2norm) {
        qq = quad_sum(qq);
        kk = quad_sum(kk);
        if (c == 0) {
          s.row_sum[0][cq][i] = qq;
          s.row_sum[1][cq][i] = kk;
        }
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int n = 0; n < kTilesK; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int d = d0 + 8 * n + e;
          float x = l[row][n][e];
          const float bias = in.gate.dt_bias != nullptr && d < K
                                 ? __ldg(in.gate.dt_bias + static_cast<std::int64_t>(hv) * K + d)
                                 : 0.0F;
          x = fast_decay(in.gate, bias, exp_a, x);
          l[row][n][e] = valid[row] && d < K ? x * kLog2E : 0.0F;
        }
      }
    }
    __syncthreads();  // row sums; S, D, do, X read before the factor tiles take their place
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (in.l2norm) {
        const int i = i0 + 8 * row;
        rstd_q[row] = rsqrtf(s.row_sum[0][0][i] + s.row_sum[0][1][i] + s.row_sum[0][2][i] +
                             s.row_sum[0][3][i] + kNormEps);
        rstd_k[row] = rsqrtf(s.row_sum[1][0][i] + s.row_sum[1][1][i] + s.row_sum[1][2][i] +
                             s.row_sum[1][3][i] + kNormEps);
      }
#pragma unroll
      for (int n = 0; n < kTilesK; ++n) {
        float2 x = make_float2(qf[row][n].x * rstd_q[row], qf[row][n].y * rstd_q[row]);
        float2 y = make_float2(kf[row][n].x * rstd_k[row], kf[row][n].y * rstd_k[row]);
        if (!kPlain && in.q.elem == Elem::kF16) {
          x = make_float2(round_to(Elem::kF16, x.x), round_to(Elem::kF16, x.y));
          y = make_float2(round_to(Elem::kF16, y.x), round_to(Elem::kF16, y.y));
        }
        q[row][n] = pack_bf16(x.x, x.y);
        k[row][n] = pack_bf16(y.x, y.y);
      }
    }
  }
  float f[2][kTilesK][2];  // exponents relative to the middle row, of clamped decays
  bool clamped = false;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
#pragma unroll
    for (int n = 0; n < kTilesK; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        f[row][n][e] = fmaxf(l[row][n][e], kDiagonalClamp);
        clamped = clamped || f[row][n][e] != l[row][n][e];
      }
    }
  }
  scan_fragment<kTilesK>(r, c, l);
  if (__any_sync(0xffffffffU, clamped)) {
    scan_fragment<kTilesK>(r, c, f);
  } else {
#pragma unroll
    for (int n = 0; n < kTilesK; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        f[0][n][e] = l[0][n][e];
        f[1][n][e] = l[1][n][e];
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kTilesK; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float middle = __shfl_sync(0xffffffffU, f[1][n][e], c);
      f[0][n][e] -= middle;
      f[1][n][e] -= middle;
      const float total = __shfl_sync(0xffffffffU, l[1][n][e], 28 + c);
      if (r == 7) {
        s.total[rb][d0 + 8 * n + e] = total;
        s.across[rb][d0 + 8 * n + e] = ptx::exp2_approx(total);
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float t0 = __shfl_sync(0xffffffffU, l[1][n][0], 28 + c);
      const float t1 = __shfl_sync(0xffffffffU, l[1][n][1], 28 + c);
      const float up0 = ptx::exp2_approx(l[row][n][0]);
      const float up1 = ptx::exp2_approx(l[row][n][1]);
      const float down0 = ptx::exp2_approx(t0 - l[row][n][0]);
      const float down1 = ptx::exp2_approx(t1 - l[row][n][1]);
      const float mid0 = ptx::exp2_approx(f[row][n][0]);
      const float mid1 = ptx::exp2_approx(f[row][n][1]);
      const float anti0 = ptx::exp2_approx(-f[row][n][0]);
      const float anti1 = ptx::exp2_approx(-f[row][n][1]);
      const float q0 = low_of(q[row][n]);
      const float q1 = high_of(q[row][n]);
      const float k0 = low_of(k[row][n]);
      const float k1 = high_of(k[row][n]);
      const std::uint32_t at = pair_address<kK>(0, i0 + 8 * row, d0 + 8 * n);
      ptx::store_shared_pair(smem_address(s.k_col) + at, pack_bf16(k0 * down0, k1 * down1));
      ptx::store_shared_pair(smem_address(s.q_row) + at, pack_bf16(q0 * up0, q1 * up1));
      ptx::store_shared_pair(smem_address(s.k_row) + at,
                             pack_bf16(beta[row] * k0 * up0, beta[row] * k1 * up1));
      ptx::store_shared_pair(smem_address(s.k_down) + at, pack_bf16(k0 * anti0, k1 * anti1));
      ptx::store_shared_pair(smem_address(s.q_up) + at, pack_bf16(q0 * mid0, q1 * mid1));
      ptx::store_shared_pair(smem_address(s.k_up) + at,
                             pack_bf16(beta[row] * k0 * mid0, beta[row] * k1 * mid1));
    }
  }
  __syncthreads();  // factor tiles and block decays before the sweeps

  // What enters at the chunk's end: sum_i k_i 2^(end - G_i) (U D^T)_i, this block's share.
  {
#pragma unroll
    for (int n = 0; n < kTilesK; ++n) {
      const std::uint32_t at = pair_address<kK>(smem_address(s.k_col), i0, d0 + 8 * n);
      const std::uint32_t k0 = ptx::load_shared_pair(at);
      const std::uint32_t k1 =
          ptx::load_shared_pair(pair_address<kK>(smem_address(s.k_col), i0 + 8, d0 + 8 * n));
      float x = column_sum(low_of(k0) * acc_c[n][0] + low_of(k1) * acc_c[n][2]);
      float y = column_sum(high_of(k0) * acc_c[n][1] + high_of(k1) * acc_c[n][3]);
      if (r == 0) {
        for (int J = rb + 1; J < 4; ++J) {
          x *= s.across[J][d0 + 8 * n];
          y *= s.across[J][d0 + 8 * n + 1];
        }
        s.enter[rb][d0 + 8 * n] = x;
        s.enter[rb][d0 + 8 * n + 1] = y;
      }
    }
  }

  // 5. Sweeps. dG = q dq + k kRow - k kCol is summed from the *rounded* factors that the products
  // used: then what token i gives to its column partner j cancels to f32 precision in the suffix
  // sums, as it does in exact arithmetic.
  float d_g[2][kTilesK][2];
  {
#pragma unroll
    for (int n = 0; n < kTilesK; ++n) {
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        acc_q[n][x] *= in.scale;
        acc_y[n][x] = -acc_y[n][x];
      }
    }
    for (int J = 0; J < rb; ++J) {
      std::uint32_t a[4];
      scale_channels<kTilesK>(s.across[J], d0, acc_q);
      ptx::ldmatrix(a, block_address<kC>(smem_address(s.d_n), row0, 16 * J, lane));
      multiply_block<kK, kTilesK>(a, smem_address(s.k_col), 16 * J, col, lane, acc_q);
      scale_channels<kTilesK>(s.across[J], d0, acc_y);
      ptx::ldmatrix(a, block_address<kC>(smem_address(s.p), row0, 16 * J, lane));
      multiply_block<kK, kTilesK>(a, smem_address(s.k_col), 16 * J, col, lane, acc_y);
    }
    for (int I = 3; I > rb; --I) {
      std::uint32_t a[4];
      scale_channels<kTilesK>(s.across[I], d0, acc_c);
      load_transposed(a, smem_address(s.d_n), 16 * I, row0, lane);
      multiply_block<kK, kTilesK>(a, smem_address(s.q_row), 16 * I, col, lane, acc_c);
      load_transposed(a, smem_address(s.p), 16 * I, row0, lane);
      multiply_block<kK, kTilesK>(a, smem_address(s.k_row), 16 * I, col, lane, acc_c);
    }
    std::uint32_t n_rows[4];
    std::uint32_t p_rows[4];
    std::uint32_t n_cols[4];
    std::uint32_t p_cols[4];
    ptx::ldmatrix(n_rows, block_address<kC>(smem_address(s.d_n), row0, row0, lane));
    ptx::ldmatrix(p_rows, block_address<kC>(smem_address(s.p), row0, row0, lane));
    load_transposed(n_cols, smem_address(s.d_n), row0, row0, lane);
    load_transposed(p_cols, smem_address(s.p), row0, row0, lane);
    float k_row_sum[2] = {};
#pragma unroll
    for (int pair = 0; pair < kTilesK / 2; ++pair) {
      float diag_q[2][4] = {};
      float diag_y[2][4] = {};
      float diag_c[2][4] = {};
      multiply_block<kK, 2>(n_rows, smem_address(s.k_down), row0, col + 16 * pair, lane, diag_q);
      multiply_block<kK, 2>(p_rows, smem_address(s.k_down), row0, col + 16 * pair, lane, diag_y);
      multiply_block<kK, 2>(n_cols, smem_address(s.q_up), row0, col + 16 * pair, lane, diag_c);
      multiply_block<kK, 2>(p_cols, smem_address(s.k_up), row0, col + 16 * pair, lane, diag_c);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int n = 2 * pair + half;
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const std::uint32_t at = pair_address<kK>(0, i0 + 8 * row, d0 + 8 * n);
          const std::uint32_t q_row = ptx::load_shared_pair(smem_address(s.q_row) + at);
          const std::uint32_t k_row = ptx::load_shared_pair(smem_address(s.k_row) + at);
          const std::uint32_t k_col = ptx::load_shared_pair(smem_address(s.k_col) + at);
          const std::uint32_t q_up = ptx::load_shared_pair(smem_address(s.q_up) + at);
          const std::uint32_t k_up = ptx::load_shared_pair(smem_address(s.k_up) + at);
          const std::uint32_t k_down = ptx::load_shared_pair(smem_address(s.k_down) + at);
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int x = 2 * row + e;
            const auto part = [e](std::uint32_t pair) {
              return e == 0 ? low_of(pair) : high_of(pair);
            };
            d_g[row][n][e] = part(q_row) * acc_q[n][x] + part(q_up) * diag_q[half][x] +
                             part(k_row) * acc_y[n][x] + part(k_up) * diag_y[half][x] -
                             part(k_col) * acc_c[n][x] - part(k_down) * diag_c[half][x];
            const float total = s.total[rb][d0 + 8 * n + e];
            const float up = ptx::exp2_approx(l[row][n][e]);
            const float down = ptx::exp2_approx(total - l[row][n][e]);
            const float mid = ptx::exp2_approx(f[row][n][e]);
            const float anti = ptx::exp2_approx(-f[row][n][e]);
            const float y = acc_y[n][x] * up + diag_y[half][x] * mid;
            k_row_sum[row] += part(k[row][n]) * y;
            acc_q[n][x] = acc_q[n][x] * up + diag_q[half][x] * mid;                     // dq
            acc_c[n][x] = beta[row] * y + acc_c[n][x] * down + diag_c[half][x] * anti;  // dk
          }
        }
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float sum = quad_sum(k_row_sum[row]);
      if (c == 0) s.row_sum[2][cq][i0 + 8 * row] = sum;
      float q_dot = 0.0F;
      float k_dot = 0.0F;
#pragma unroll
      for (int n = 0; n < kTilesK; ++n) {
        q_dot += low_of(q[row][n]) * acc_q[n][2 * row] + high_of(q[row][n]) * acc_q[n][2 * row + 1];
        k_dot += low_of(k[row][n]) * acc_c[n][2 * row] + high_of(k[row][n]) * acc_c[n][2 * row + 1];
      }
      q_dot = quad_sum(q_dot);
      k_dot = quad_sum(k_dot);
      if (c == 0) {
        s.row_sum[4][cq][i0 + 8 * row] = q_dot;
        s.row_sum[5][cq][i0 + 8 * row] = k_dot;
      }
    }
  }
  suffix_scan_fragment<kTilesK>(r, c, d_g);
  if (r == 0) {
#pragma unroll
    for (int n = 0; n < kTilesK; ++n) {
      s.suffix[rb][d0 + 8 * n] = d_g[0][n][0];
      s.suffix[rb][d0 + 8 * n + 1] = d_g[0][n][1];
    }
  }
  __syncthreads();  // block sums and row sums before step 6

  // 6. Outputs.
  const std::int64_t token0 = chunk.row * args.shape.T + chunk.begin;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (!valid[row]) continue;
    const int i = i0 + 8 * row;
    if (args.dq_part != nullptr) {
      const std::int64_t at = ((token0 + i) * HV + hv) * K;
#pragma unroll
      for (int n = 0; n < kTilesK; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int d = d0 + 8 * n + e;
          if (d >= K) continue;
          args.dq_part[at + d] = acc_q[n][2 * row + e];
          args.dk_part[at + d] = acc_c[n][2 * row + e];
        }
      }
      continue;
    }
    float q_dot = 0.0F;
    float k_dot = 0.0F;
    if (in.l2norm) {
#pragma unroll
      for (int quarter = 0; quarter < 4; ++quarter) {
        q_dot += s.row_sum[4][quarter][i];
        k_dot += s.row_sum[5][quarter][i];
      }
    }
    const std::int64_t t = chunk.begin + i;
    const std::int64_t q_at = chunk.row * args.dq.s0 + t * args.dq.s1 + h * args.dq.s2;
    const std::int64_t k_at = chunk.row * args.dk.s0 + t * args.dk.s1 + h * args.dk.s2;
#pragma unroll
    for (int n = 0; n < kTilesK; ++n) {
      if (args.dq.data != nullptr) {
        store_pair<kPlain>(args.dq, q_at, d0 + 8 * n, K,
                           rstd_q[row] * (acc_q[n][2 * row] - q_dot * low_of(q[row][n])),
                           rstd_q[row] * (acc_q[n][2 * row + 1] - q_dot * high_of(q[row][n])));
      }
      if (args.dk.data != nullptr) {
        store_pair<kPlain>(args.dk, k_at, d0 + 8 * n, K,
                           rstd_k[row] * (acc_c[n][2 * row] - k_dot * low_of(k[row][n])),
                           rstd_k[row] * (acc_c[n][2 * row + 1] - k_dot * high_of(k[row][n])));
      }
    }
  }
  float da_log = 0.0F;
#pragma unroll
  for (int n = 0; n < kTilesK; ++n) {
    float entering[2];
    float dbias[2] = {};
    float bias[2] = {};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int d = d0 + 8 * n + e;
      const float end = s.total[0][d] + s.total[1][d] + s.total[2][d] + s.total[3][d];
      entering[e] = ptx::exp2_approx(end) * s.sd[d] +
                    (s.enter[0][d] + s.enter[1][d] + s.enter[2][d] + s.enter[3][d]);
      for (int J = rb + 1; J < 4; ++J)
        entering[e] += s.suffix[J][d];
      if (in.gate.dt_bias != nullptr && d < K) {
        bias[e] = __ldg(in.gate.dt_bias + static_cast<std::int64_t>(hv) * K + d);
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (!valid[row]) continue;
      float2 x = load_pair<kPlain>(in.g, g_at[row], d0 + 8 * n, K);
      const float da[2] = {d_g[row][n][0] + entering[0], d_g[row][n][1] + entering[1]};
      float dx[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float xe = e == 0 ? x.x : x.y;
        float share = 0.0F;
        dx[e] = fast_decay_backward(in.gate, bias[e], exp_a, xe, da[e], &share);
        if (d0 + 8 * n + e < K) da_log += share;
        dbias[e] += dx[e];
      }
      if (args.dg.data != nullptr) {
        const std::int64_t t = chunk.begin + i0 + 8 * row;
        store_pair<kPlain>(args.dg, chunk.row * args.dg.s0 + t * args.dg.s1 + hv * args.dg.s2,
                           d0 + 8 * n, K, dx[0], dx[1]);
      }
    }
    if (args.dbias_part != nullptr) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float sum = column_sum(dbias[e]);
        if (r == 0) s.bias[rb][d0 + 8 * n + e] = sum;
      }
    }
  }
  if (args.da_log_part != nullptr) {
    da_log = warp_sum(da_log);
    if (lane == 0) s.da_log[warp] = da_log;
  }
  if (tid < chunk.length && args.dbeta.data != nullptr) {
    float sum = 0.0F;
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      sum += s.row_sum[2][quarter][tid] + s.row_sum[3][quarter][tid];
    }
    if (in.beta_is_logit) sum *= s.beta[tid] * (1.0F - s.beta[tid] / in.beta_max);
    store(args.dbeta,
          chunk.row * args.dbeta.s0 + (chunk.begin + tid) * args.dbeta.s1 + hv * args.dbeta.s2,
          sum);
  }
  __syncthreads();  // shares of the parameter gradients before their sums
  if (args.dbias_part != nullptr) {
    for (int d = tid; d < K; d += kLocalThreads) {
      args.dbias_part[tile * K + d] = s.bias[0][d] + s.bias[1][d] + s.bias[2][d] + s.bias[3][d];
    }
  }
  if (args.da_log_part != nullptr && tid == 0) {
    float sum = 0.0F;
    for (int w = 0; w < 16; ++w)
      sum += s.da_log[w];
    args.da_log_part[tile] = sum;
  }
}

}  // namespace kda::cuda
