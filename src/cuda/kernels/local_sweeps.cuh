// Steps 4 to 6 of the chunk-local backward (local_mma.cuh): from the products with S and D to the
// gradients of q, k, the gate and beta, for kK channels of a chunk and head.
//
//   4. factors of q and k: per 16-row block relative to its ends (off-diagonal blocks, all <= 1)
//   and
//      to rows 4 and 12 (diagonal blocks in two levels, as in prep_mma.cuh)
//   5. sweeps: rows J = 0.. and columns I = 3.. are added to the accumulators of step 3 by Horner's
//      rule in the block decays, so each product with S and D is scaled once
//   6. dq, dk (norm's backward), dg (suffix sum, gate's backward), dbeta, partial sums
// The code of a whole tile must fit the instruction cache: a warp runs through it once per tile.
#pragma once

#include "cuda/kernels/prep_mma.cuh"
#include "cuda/kernels/scan_mma.cuh"
#include "cuda/tile/fragment.cuh"

namespace kda::cuda {

// Column groups that the warps of a row block share: of 16 or 32 columns.
template <int kDim>
inline constexpr int kLocalGroups = kDim == 32   ? 2
                                    : kDim == 96 ? 3
                                                 : 4;
template <int kK>
inline constexpr int kLocalThreads = 128 * kLocalGroups<kK>;

template <int kK, int kV>
struct LocalSmem {
  union {
    struct {
      alignas(256) std::uint16_t s[kK * kPitch<kV>];
      alignas(256) std::uint16_t d[kK * kPitch<kV>];
      alignas(256) std::uint16_t d_o[kC * kPitch<kV>];
      alignas(256) std::uint16_t x[kC * kPitch<kV>];
    };
    struct {
      alignas(256) std::uint16_t k_col[kC * kPitch<kK>];  // k 2^(end of block - G)
      alignas(256) std::uint16_t q_row[kC * kPitch<kK>];  // q 2^(G - start of block)
      alignas(256) std::uint16_t k_row[kC * kPitch<kK>];  // beta k 2^(G - start of block)
      alignas(
          256) std::uint16_t k_down[kC * kPitch<kK>];  // k 2^(G of row 4 or 12 - G), by half block
      alignas(256) std::uint16_t q_up[kC * kPitch<kK>];  // q 2^(G - G of row 4)
      alignas(256) std::uint16_t k_up[kC * kPitch<kK>];  // beta k 2^(G - G of row 4)
    };
  };
  union {
    alignas(256) std::uint16_t u[kC * kPitch<(kK > kV ? kK : kV)>];  // kt, then U
    struct {  // rows 8-15 of each block relative to row 12
      alignas(256) std::uint16_t q_high[kC / 2 * kPitch<kK>];
      alignas(256) std::uint16_t k_high[kC / 2 * kPitch<kK>];
    };
  };
  union {
    alignas(256) std::uint16_t v[kC * kPitch<kV>];  // then Z
    struct {
      alignas(256) std::uint16_t d_n[kC * kC];
      alignas(256) std::uint16_t p[kC * kC];
    };
  };
  alignas(256) std::uint16_t a[kC * kC];
  float total[4][kK];                // decay sum of each block
  float across[4][kK];               // 2^total
  float enter[4][kK];                // shares of what enters at the chunk's end
  float suffix[4][kK];               // dG sum of each block
  alignas(8) float entering[4][kK];  // what enters a block's last row from later
  float bias[4][kK];                 // shares of d_dt_bias
  float sd[kK];                      // sum_v S D
  float beta[kC];
  float row_sum[6][4][kC];  // per column group: |q|^2, |k|^2, k.row, X.v, q.dq, k.dk
  float rstd[2][kC];        // 1 / |q|, 1 / |k|
  float da_log[16];
};

// A pair of channels of q or k, normalised and rounded as the tensor's type would.
template <bool kPlain>
__device__ inline float2 unit_pair(Elem elem, float2 x, float rstd) {
  x = make_float2(x.x * rstd, x.y * rstd);
  if (!kPlain && elem == Elem::kF16) {
    x = make_float2(round_to(Elem::kF16, x.x), round_to(Elem::kF16, x.y));
  }
  const std::uint32_t pair = pack_bf16(x.x, x.y);
  return make_float2(low_of(pair), high_of(pair));
}

// Step 3: products of do, X and U with S and D, accumulated over the columns that are in shared
// memory.
template <int kK, int kV>
__device__ __forceinline__ void local_products(const LocalSmem<kK, kV>& s, int row0, int col,
                                               int lane,
                                               float (&acc_q)[kK / 8 / kLocalGroups<kK>][4],
                                               float (&acc_y)[kK / 8 / kLocalGroups<kK>][4],
                                               float (&acc_c)[kK / 8 / kLocalGroups<kK>][4]) {
  constexpr int kTilesK = kK / 8 / kLocalGroups<kK>;
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
}

// sum_v S D of channel d: the share of four neighbouring threads.
template <int kV>
__device__ inline float state_dot(const std::uint16_t* s, const std::uint16_t* states, int d) {
  float sum = 0.0F;
#pragma unroll
  for (int piece = static_cast<int>(threadIdx.x) % 4; piece < kV / 8; piece += 4) {
    const uint4 a = ptx::load_shared(smem_address(s) + swizzled<kV>(d, piece));
    const uint4 b = ptx::load_shared(smem_address(states) + swizzled<kV>(d, piece));
    sum += low_of(a.x) * low_of(b.x) + high_of(a.x) * high_of(b.x);
    sum += low_of(a.y) * low_of(b.y) + high_of(a.y) * high_of(b.y);
    sum += low_of(a.z) * low_of(b.z) + high_of(a.z) * high_of(b.z);
    sum += low_of(a.w) * low_of(b.w) + high_of(a.w) * high_of(b.w);
  }
  return quad_sum(sum);
}

// acc_q, acc_y, acc_c: do S^T, X S^T, U D^T of channels [first, first + kK), from step 3; in shared
// memory dN, P, beta, sd, X.v. kWide: the call has more channels than kK, this is slice `slice` of
// them: dq, dk and the shares of dbeta go to partial sums, whatever G is.
template <int kK, int kV, bool kPlain, bool kWide>
__device__ __forceinline__ void local_sweeps(const ChunkArgs& args, const Chunk& chunk,
                                             std::int64_t tile, int hv, int slice,
                                             LocalSmem<kK, kV>& s,
                                             float (&acc_q)[kK / 8 / kLocalGroups<kK>][4],
                                             float (&acc_y)[kK / 8 / kLocalGroups<kK>][4],
                                             float (&acc_c)[kK / 8 / kLocalGroups<kK>][4]) {
  constexpr int kThreads = kLocalThreads<kK>;
  constexpr int kGroups = kLocalGroups<kK>;
  constexpr int kTilesK = kK / 8 / kGroups;
  const int HV = args.shape.HV;
  const int K = args.shape.K;
  const int h = hv / args.shape.G;
  const int tid = threadIdx.x;
  const int warp = tid / 32;
  int lane = ptx::forgotten(tid % 32);
  const int rb = warp / kGroups;
  const int cq = warp % kGroups;
  int r = lane / 4;
  int c = lane % 4;
  const int row0 = 16 * rb;
  int i0 = row0 + r;
  const int col = 8 * kTilesK * cq;          // the warp's first channel in tiles
  int d0 = col + 2 * c;                      // the thread's
  int first = kWide ? slice * kK + d0 : d0;  // the same in tensors
  std::uint32_t first_pair = pair_address<kK>(0, i0, d0);
  const auto pair_at = [&first_pair](int row, int n) {
    return (first_pair ^ static_cast<std::uint32_t>(16 * n)) +
           static_cast<std::uint32_t>(16 * kPitch<kK> * row);
  };
  const auto high_at = [&](int n) {  // row 8 rb + r
    return pair_at(0, n) - static_cast<std::uint32_t>(16 * kPitch<kK> * rb);
  };
  const Inputs& in = args.in;
  const float beta[2] = {s.beta[i0], s.beta[i0 + 8]};

  // 4. q and k (normalised), decay sums inside the block. What can be read again after the sweeps
  // is not kept in registers.
  float l[2][kTilesK][2];
  const float exp_a = in.gate.a_log != nullptr ? expf(in.gate.a_log[hv]) : 1.0F;
  const bool valid[2] = {i0 < chunk.length, i0 + 8 < chunk.length};
  // Offsets of rows i0 and i0 + 8; rows past the end give the chunk's last one: loads need no
  // branch.
  const auto rows_at = [&](const Tensor& t, int head, std::int64_t(&at)[2]) {
    const std::int64_t first = chunk.row * t.s0 + chunk.begin * t.s1 + head * t.s2;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int i = ptx::forgotten(i0) + 8 * row;
      at[row] = first + (i < chunk.length ? i : chunk.length - 1) * t.s1;
    }
  };
  // The body for the gate's kind: no branch inside.
  const auto with_gate = [&](auto&& body) {
    Gate gate = in.gate;
    switch (gate.kind) {
      case GateKind::kReady:
        gate.kind = GateKind::kReady;
        return body(gate);
      case GateKind::kStandard:
        gate.kind = GateKind::kStandard;
        return body(gate);
      default:
        gate.kind = GateKind::kBounded;
        return body(gate);
    }
  };
  const auto bias_at = [&](int d) {
    return in.gate.dt_bias != nullptr && (kPlain || d < K) ? __ldg(in.gate.dt_bias + hv * K + d)
                                                           : 0.0F;
  };
  // Unit q or k: channels d0 + 8 n, + 1 of a row; `rstd` is 0 past the end.
  const auto unit = [&](const Tensor& x, std::int64_t at, int n, float rstd) {
    return unit_pair<kPlain>(x.elem, load_pair<kPlain>(x, at, first + 8 * n, K), rstd);
  };
  {
    std::int64_t q_at[2];
    std::int64_t k_at[2];
    std::int64_t g_at[2];
    rows_at(in.q, h, q_at);
    rows_at(in.k, h, k_at);
    rows_at(in.g, hv, g_at);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float qq = 0.0F;
      float kk = 0.0F;
#pragma unroll
      for (int n = 0; n < kTilesK; ++n) {
        const int d = first + 8 * n;
        const float2 q = load_pair<kPlain>(in.q, q_at[row], d, K);
        const float2 k = load_pair<kPlain>(in.k, k_at[row], d, K);
        const float2 g = load_pair<kPlain>(in.g, g_at[row], d, K);
        qq += q.x * q.x + q.y * q.y;
        kk += k.x * k.x + k.y * k.y;
        l[row][n][0] = g.x;
        l[row][n][1] = g.y;
      }
      if (kWide && in.l2norm) {  // the norm is that of all channels
#pragma unroll 1
        for (int d = d0; d < K; d += kK) {
          if (d == first) continue;
#pragma unroll
          for (int n = 0; n < kTilesK; ++n) {
            const float2 q = load_pair<kPlain>(in.q, q_at[row], d + 8 * n, K);
            const float2 k = load_pair<kPlain>(in.k, k_at[row], d + 8 * n, K);
            qq += q.x * q.x + q.y * q.y;
            kk += k.x * k.x + k.y * k.y;
          }
        }
      }
      if (in.l2norm) {
        qq = quad_sum(qq);
        kk = quad_sum(kk);
        if (c == 0) {
          s.row_sum[0][cq][i0 + 8 * row] = qq;
          s.row_sum[1][cq][i0 + 8 * row] = kk;
        }
      }
    }
    with_gate([&](const Gate& gate) {
#pragma unroll
      for (int n = 0; n < kTilesK; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int d = first + 8 * n + e;
          const float bias = bias_at(d);
#pragma unroll
          for (int row = 0; row < 2; ++row) {
            const float x = kLog2E * fast_decay(gate, bias, exp_a, l[row][n][e]);
            l[row][n][e] = valid[row] && (kPlain || d < K) ? fmaxf(x, kDecayClamp) : 0.0F;
          }
        }
      }
    });
    scan_fragment<kTilesK>(r, c, l);
    __syncthreads();   // row sums; S, D, do, X, U read before the factor tiles take their place
    float rstd[2][2];  // [q, k][row]
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        const float norm = in.l2norm ? row_rstd<kGroups>(s.row_sum[which], i0 + 8 * row) : 1.0F;
        rstd[which][row] = valid[row] ? norm : 0.0F;
      }
    }
    if (cq == 0 && c < 2) {
      s.rstd[c][i0] = c == 0 ? rstd[0][0] : rstd[1][0];
      s.rstd[c][i0 + 8] = c == 0 ? rstd[0][1] : rstd[1][1];
    }
#pragma unroll
    for (int n = 0; n < kTilesK; ++n) {
      const float t0 = __shfl_sync(0xffffffffU, l[1][n][0], 28 + c);
      const float t1 = __shfl_sync(0xffffffffU, l[1][n][1], 28 + c);
      float anchor[2][2];  // of columns 0-7, 8-15
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        anchor[row][0] = __shfl_sync(0xffffffffU, l[row][n][0], 16 + c);
        anchor[row][1] = __shfl_sync(0xffffffffU, l[row][n][1], 16 + c);
      }
      if (r == 7) {
        s.total[rb][d0 + 8 * n] = t0;
        s.total[rb][d0 + 8 * n + 1] = t1;
        s.across[rb][d0 + 8 * n] = ptx::exp2_approx(t0);
        s.across[rb][d0 + 8 * n + 1] = ptx::exp2_approx(t1);
      }
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float2 q = unit(in.q, q_at[row], n, rstd[0][row]);
        const float2 k = unit(in.k, k_at[row], n, rstd[1][row]);
        const float x = l[row][n][0];
        const float y = l[row][n][1];
        const std::uint32_t at = pair_at(row, n);
        const auto store_scaled = [&](const std::uint16_t* tile, std::uint32_t place, float2 pair,
                                      float factor, float ex, float ey) {
          ptx::store_shared_pair(smem_address(tile) + place,
                                 pack_bf16(factor * pair.x * ptx::exp2_approx(ex),
                                           factor * pair.y * ptx::exp2_approx(ey)));
        };
        store_scaled(s.k_col, at, k, 1.0F, t0 - x, t1 - y);
        store_scaled(s.q_row, at, q, 1.0F, x, y);
        store_scaled(s.k_row, at, k, beta[row], x, y);
        store_scaled(s.k_down, at, k, 1.0F, anchor[row][0] - x, anchor[row][1] - y);
        store_scaled(s.q_up, at, q, 1.0F, x - anchor[0][0], y - anchor[0][1]);
        store_scaled(s.k_up, at, k, beta[row], x - anchor[0][0], y - anchor[0][1]);
        if (row == 1) {
          const std::uint32_t high = high_at(n);
          store_scaled(s.q_high, high, q, 1.0F, x - anchor[1][0], y - anchor[1][1]);
          store_scaled(s.k_high, high, k, beta[row], x - anchor[1][0], y - anchor[1][1]);
        }
      }
    }
  }
  __syncthreads();  // factor tiles and block decays before the sweeps

  lane = ptx::forgotten(lane);
  first_pair = ptx::forgotten(first_pair);
  first = ptx::forgotten(first);
  d0 = ptx::forgotten(d0);
  r = lane / 4;
  c = lane % 4;
  i0 = row0 + r;
  // What enters at the chunk's end: sum_i k_i 2^(end - G_i) (U D^T)_i, this block's share. What the
  // chunk's last row gives to it, it takes back in dG, before anything else may use it: left out of
  // both, as the difference of sums e^20 times larger than itself would have no digits left.
  const bool passes[2] = {i0 != chunk.length - 1, i0 + 8 != chunk.length - 1};
  {
#pragma unroll
    for (int n = 0; n < kTilesK; ++n) {
      const std::uint32_t k0 = ptx::load_shared_pair(smem_address(s.k_col) + pair_at(0, n));
      const std::uint32_t k1 = ptx::load_shared_pair(smem_address(s.k_col) + pair_at(1, n));
      float x = column_sum((passes[0] ? low_of(k0) * acc_c[n][0] : 0.0F) +
                           (passes[1] ? low_of(k1) * acc_c[n][2] : 0.0F));
      float y = column_sum((passes[0] ? high_of(k0) * acc_c[n][1] : 0.0F) +
                           (passes[1] ? high_of(k1) * acc_c[n][3] : 0.0F));
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
    lane = ptx::forgotten(lane);
    first_pair = ptx::forgotten(first_pair);
    first = ptx::forgotten(first);
    d0 = ptx::forgotten(d0);
    r = lane / 4;
    c = lane % 4;
    i0 = row0 + r;
    // Diagonal blocks: first what goes to q, then to the rows and last to the columns of k, so that
    // few fragments are needed at a time.
#pragma unroll
    for (int pair = 0; pair < kTilesK / 2; ++pair) {
      const auto part_of = [](std::uint32_t x, int e) { return e == 0 ? low_of(x) : high_of(x); };
      // Rows: low: columns 0-7, high: columns 8-15 (rows 8-15 only), relative to rows 4 and 12.
      const auto rows = [&](const std::uint16_t* coefficients, const std::uint16_t* row_tile,
                            const std::uint16_t* up_tile, const std::uint16_t* high_tile,
                            float(&acc)[kTilesK][4], bool first) {
        float low[2][4] = {};
        float high[2][4] = {};
        std::uint32_t a[4];
        std::uint32_t b[4];
        ptx::ldmatrix(a, block_address<kC>(smem_address(coefficients), row0, row0, lane));
        ptx::ldmatrix_trans(b,
                            block_address<kK>(smem_address(s.k_down), row0, col + 16 * pair, lane));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          ptx::mma_bf16_k8(low[half], a[0], a[1], b[2 * half]);
          ptx::mma_bf16_k8(high[half], a[2], a[3], b[2 * half + 1]);
          const int n = 2 * pair + half;
          float anchor[2][2];  // of columns 0-7, 8-15
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            anchor[0][e] = __shfl_sync(0xffffffffU, l[0][n][e], 16 + c);
            anchor[1][e] = __shfl_sync(0xffffffffU, l[1][n][e], 16 + c);
          }
#pragma unroll
          for (int row = 0; row < 2; ++row) {
            const std::uint32_t at = pair_at(row, n);
            const std::uint32_t start = ptx::load_shared_pair(smem_address(row_tile) + at);
            const std::uint32_t up = ptx::load_shared_pair(smem_address(up_tile) + at);
            std::uint32_t up_high = 0;
            if (row == 1) up_high = ptx::load_shared_pair(smem_address(high_tile) + high_at(n));
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int x = 2 * row + e;
              // Powers are computed again for the rows of k: kept, they do not fit into registers.
              const float own = ptx::forgotten(l[row][n][e]);
              float dg = part_of(start, e) * acc[n][x] + part_of(up, e) * low[half][x];
              float value = acc[n][x] * ptx::exp2_approx(own) +
                            low[half][x] * ptx::exp2_approx(own - anchor[0][e]);
              if (row == 1) {
                dg += part_of(up_high, e) * high[half][x];
                value += high[half][x] * ptx::exp2_approx(own - anchor[1][e]);
              }
              acc[n][x] = value;
              d_g[row][n][e] = first ? dg : d_g[row][n][e] + dg;
            }
          }
        }
      };
      rows(s.d_n, s.q_row, s.q_up, s.q_high, acc_q, true);
      rows(s.p, s.k_row, s.k_up, s.k_high, acc_y, false);

      float low[2][4] = {};   // rows (of the transpose) 0-7 count
      float high[2][4] = {};  // rows 8-15 count
      std::uint32_t n_cols[4];
      std::uint32_t p_cols[4];
      std::uint32_t b[4];
      load_transposed(n_cols, smem_address(s.d_n), row0, row0, lane);
      load_transposed(p_cols, smem_address(s.p), row0, row0, lane);
      multiply_block<kK, 2>(n_cols, smem_address(s.q_up), row0, col + 16 * pair, lane, low);
      multiply_block<kK, 2>(p_cols, smem_address(s.k_up), row0, col + 16 * pair, lane, low);
      // Matrices 0, 1: q_high, columns col + 16 pair, + 8; 2, 3: k_high.
      ptx::ldmatrix_trans(
          b, smem_address(lane < 16 ? s.q_high : s.k_high) +
                 swizzled<kK>(8 * rb + lane % 8, (col + 16 * pair) / 8 + lane / 8 % 2));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        ptx::mma_bf16_k8(high[half], n_cols[2], n_cols[3], b[half]);
        ptx::mma_bf16_k8(high[half], p_cols[2], p_cols[3], b[2 + half]);
        const int n = 2 * pair + half;
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const std::uint32_t at = pair_at(row, n);
          const std::uint32_t k_col = ptx::load_shared_pair(smem_address(s.k_col) + at);
          const std::uint32_t k_down = ptx::load_shared_pair(smem_address(s.k_down) + at);
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int x = 2 * row + e;
            const float diagonal = row == 0 ? low[half][x] : high[half][x];
            const float anchor = __shfl_sync(0xffffffffU, l[row][n][e], 16 + c);
            const float total = s.total[rb][d0 + 8 * n + e];
            d_g[row][n][e] -= (passes[row] ? part_of(k_col, e) * acc_c[n][x] : 0.0F) +
                              part_of(k_down, e) * diagonal;
            acc_c[n][x] = beta[row] * acc_y[n][x] +
                          acc_c[n][x] * ptx::exp2_approx(total - l[row][n][e]) +
                          diagonal * ptx::exp2_approx(anchor - l[row][n][e]);  // dk
          }
        }
      }
    }
    std::int64_t q_at[2];
    std::int64_t k_at[2];
    rows_at(in.q, h, q_at);
    rows_at(in.k, h, k_at);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float k_y = 0.0F;
      float q_dot = 0.0F;
      float k_dot = 0.0F;
#pragma unroll
      for (int n = 0; n < kTilesK; ++n) {
        const float2 q = unit(in.q, q_at[row], n, s.rstd[0][i0 + 8 * row]);
        const float2 k = unit(in.k, k_at[row], n, s.rstd[1][i0 + 8 * row]);
        const int x = 2 * row;
        k_y += k.x * acc_y[n][x] + k.y * acc_y[n][x + 1];
        q_dot += q.x * acc_q[n][x] + q.y * acc_q[n][x + 1];
        k_dot += k.x * acc_c[n][x] + k.y * acc_c[n][x + 1];
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
  first = ptx::forgotten(first);
  d0 = ptx::forgotten(d0);
  const std::int64_t token0 = chunk.row * args.shape.T + chunk.begin;
  std::int64_t dq_at[2];
  std::int64_t dk_at[2];
  std::int64_t q_at[2];
  std::int64_t k_at[2];
  rows_at(in.q, h, q_at);
  rows_at(in.k, h, k_at);
  rows_at(args.dq, h, dq_at);
  rows_at(args.dk, h, dk_at);
  for (int e = tid; e < 4 * kK; e += kThreads) {
    const int block = e / kK;
    const int d = e % kK;
    const float end = s.total[0][d] + s.total[1][d] + s.total[2][d] + s.total[3][d];
    float sum = ptx::exp2_approx(end) * s.sd[d] +
                (s.enter[0][d] + s.enter[1][d] + s.enter[2][d] + s.enter[3][d]);
    for (int J = block + 1; J < 4; ++J)
      sum += s.suffix[J][d];
    s.entering[block][d] = sum;
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (!valid[row]) continue;
    const int i = i0 + 8 * row;
    if (kWide || args.dq_part != nullptr) {
      const std::int64_t at = ((token0 + i) * HV + hv) * K;
#pragma unroll
      for (int n = 0; n < kTilesK; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int d = first + 8 * n + e;
          if (d >= K) continue;
          args.dq_part[at + d] = acc_q[n][2 * row + e];
          args.dk_part[at + d] = acc_c[n][2 * row + e];
        }
      }
      continue;
    }
    float q_dot = 0.0F;
    float k_dot = 0.0F;
    float rstd_q = 1.0F;
    float rstd_k = 1.0F;
    if (in.l2norm) {
      q_dot = row_total<kGroups>(s.row_sum[4], i);
      k_dot = row_total<kGroups>(s.row_sum[5], i);
      rstd_q = s.rstd[0][i];
      rstd_k = s.rstd[1][i];
    }
#pragma unroll
    for (int n = 0; n < kTilesK; ++n) {
      if (args.dq.data != nullptr) {
        const float2 q = unit(in.q, q_at[row], n, rstd_q);
        store_pair<kPlain>(args.dq, dq_at[row], first + 8 * n, K,
                           rstd_q * (acc_q[n][2 * row] - q_dot * q.x),
                           rstd_q * (acc_q[n][2 * row + 1] - q_dot * q.y));
      }
      if (args.dk.data != nullptr) {
        const float2 k = unit(in.k, k_at[row], n, rstd_k);
        store_pair<kPlain>(args.dk, dk_at[row], first + 8 * n, K,
                           rstd_k * (acc_c[n][2 * row] - k_dot * k.x),
                           rstd_k * (acc_c[n][2 * row + 1] - k_dot * k.y));
      }
    }
  }
  __syncthreads();  // what enters each block before its readers
  float da_log = 0.0F;
  std::int64_t g_at[2];
  std::int64_t dg_at[2];
  rows_at(in.g, hv, g_at);
  rows_at(args.dg, hv, dg_at);
  with_gate([&](const Gate& gate) {
#pragma unroll
    for (int n = 0; n < kTilesK; ++n) {
      const float2 later = *reinterpret_cast<const float2*>(&s.entering[rb][d0 + 8 * n]);
      float dbias[2] = {};
      const float bias[2] = {bias_at(first + 8 * n), bias_at(first + 8 * n + 1)};
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float2 x = load_pair<kPlain>(in.g, g_at[row], first + 8 * n, K);
        const float da[2] = {d_g[row][n][0] + later.x, d_g[row][n][1] + later.y};
        float dx[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float share = 0.0F;
          dx[e] = fast_decay_backward(gate, bias[e], exp_a, e == 0 ? x.x : x.y, da[e], &share);
          if (valid[row] && (kPlain || first + 8 * n + e < K)) da_log += share;
          if (valid[row]) dbias[e] += dx[e];
        }
        if (valid[row] && args.dg.data != nullptr) {
          store_pair<kPlain>(args.dg, dg_at[row], first + 8 * n, K, dx[0], dx[1]);
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
  });
  if (args.da_log_part != nullptr) {
    da_log = warp_sum(da_log);
    if (lane == 0) s.da_log[warp] = da_log;
  }
  if (tid < chunk.length && args.dbeta.data != nullptr) {
    float sum = row_total<kGroups>(s.row_sum[2], tid);
    if constexpr (kWide) {
      const std::int64_t tokens = args.shape.B * args.shape.T;
      args.dbeta_part[(slice * tokens + token0 + tid) * HV + hv] = sum;
    } else {
      sum += row_total<kGroups>(s.row_sum[3], tid);
      if (in.beta_is_logit) sum *= s.beta[tid] * (1.0F - s.beta[tid] / in.beta_max);
      store(args.dbeta,
            chunk.row * args.dbeta.s0 + (chunk.begin + tid) * args.dbeta.s1 + hv * args.dbeta.s2,
            sum);
    }
  }
  __syncthreads();  // shares of the parameter gradients before their sums
  if (args.dbias_part != nullptr) {
    const int offset = kWide ? slice * kK : 0;
    for (int d = tid; d < kK && offset + d < K; d += kThreads) {
      args.dbias_part[tile * K + offset + d] =
          s.bias[0][d] + s.bias[1][d] + s.bias[2][d] + s.bias[3][d];
    }
  }
  if (args.da_log_part != nullptr && tid == 0) {
    float sum = 0.0F;
    for (int w = 0; w < kThreads / 32; ++w)
      sum += s.da_log[w];
    args.da_log_part[tile * args.a_parts + slice] = sum;
  }
}

}  // namespace kda::cuda
