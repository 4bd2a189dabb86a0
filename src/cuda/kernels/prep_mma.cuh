// Factors of one chunk with tensor cores: the same quantities as prep_simt.cuh, in bf16.
//
// Math: args.h (Factors) and spec "chunked forward", "safe exponent handling", "triangular
// inverse". With l the decay sum inside a 16-row block and e_J the sum at the end of block J (log2,
// inclusive):
//   off-diagonal blocks I > J: (q_i 2^(G_i - e_(I-1))) . (k_j 2^(e_J - G_j)) per channel, chained
//   by 2^(e_(I-1) - e_J): every factor is <= 1 for any gate, so underflow is harmless; diagonal
//   blocks: both factors relative to the middle row, |exponent| <= 8 * 15: for these alone the
//   decay of a token is clamped at 2^-15 (3e-5, against a rounding of 4e-3 of the operands).
// The inverse is a substitution in f32 inside 16x16 blocks; blocks are merged with three bf16
// products per term (high and low halves of both operands, about 2^-16).
// Inputs: q, k, g, beta and the gate's parameters. Outputs: kt, kh, qt, n, a, decay, beta.
// Grid: num_chunks * HV blocks of 4 warps; warp w owns rows 16 w .. 16 w + 15. In registers a
// thread owns rows r, r + 8 of its block and channels 32 m + 8 c .. + 7 (r = lane / 4, c = lane %
// 4): a permutation of the k index of an A fragment that global memory gives in 16-byte pieces. The
// 32 channels of a step m are finished before the next step, so that little has to be kept. Column
// factors are in shared memory in fragment order, A is row-major and swizzled.
// Shared memory: 15 KiB (Lo) + 8 KiB (column factors, later A) + 1 KiB, and where the inputs are
// plain 48 KiB of them at K = 128: three blocks per SM.
#pragma once

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/tile/chunk.cuh"
#include "cuda/tile/fast_gate.cuh"
#include "cuda/tile/rows.cuh"

namespace kda::cuda {

inline constexpr int kPrepThreads = 128;
inline constexpr int kPrepBlocks = 3;            // per SM
inline constexpr float kDiagonalClamp = -15.0F;  // log2 per token, inside diagonal blocks

struct PrepSmem {
  float lo[10][16][24];  // blocks (I, J) of Lo, J <= I; then inverses on the diagonal
  union alignas(256) {
    uint4 columns[4][2][32];  // k 2^(e - G) of blocks 0, 0 (relative to e_1), 1, 2; one step
    std::uint16_t a[kC * kC];
  };
  alignas(16) float total[4][32];  // decay sum of each block; one step
  alignas(
      16) float channel[4][4][32];  // per warp: 2^(sum before, after the block), of block 1, of 2
  float beta[kC];
};

// In the plain case every thread first sends for all it will read of q, k and g (its own pieces, so
// no barrier is needed), and the steps find them in shared memory.
template <int kK>
struct PlainPrepSmem {
  PrepSmem shared;
  alignas(16) uint4 raw[3][kK / 32][2][kPrepThreads];
};

__device__ inline int lower_block(int i, int j) { return i * (i + 1) / 2 + j; }

// Splits a pair of floats into bf16 pairs high + low.
__device__ inline void split_bf16(float x, float y, std::uint32_t* high, std::uint32_t* low) {
  *high = pack_bf16(x, y);
  *low = pack_bf16(x - low_of(*high), y - high_of(*high));
}

// c += (a_high + a_low)(b_high + b_low) without the product of the low halves.
__device__ inline void mma_split(float (&c)[4], const std::uint32_t (&a_high)[4],
                                 const std::uint32_t (&a_low)[4], const std::uint32_t (&b_high)[2],
                                 const std::uint32_t (&b_low)[2]) {
  ptx::mma_bf16(c, a_high, b_high[0], b_high[1]);
  ptx::mma_bf16(c, a_low, b_high[0], b_high[1]);
  ptx::mma_bf16(c, a_high, b_low[0], b_low[1]);
}

// B fragment [k = column][n = row] of the transpose of a 16x16 f32 block, rows 8 t .. 8 t + 7.
__device__ inline void load_split_rows(const float (*block)[24], int t, int r, int c,
                                       std::uint32_t (&high)[2], std::uint32_t (&low)[2]) {
  const float* row = block[8 * t + r];
  const float2 x = *reinterpret_cast<const float2*>(row + 2 * c);
  const float2 y = *reinterpret_cast<const float2*>(row + 2 * c + 8);
  split_bf16(x.x, x.y, &high[0], &low[0]);
  split_bf16(y.x, y.y, &high[1], &low[1]);
}

// Eight raw elements of row i0 + 8 row of q, k or g, step m; 0 past the end of the chunk.
template <int kK, bool kPlain>
__device__ inline void load_step(const Tensor& t, std::int64_t at, bool valid, int m, int dim,
                                 const uint4 (&raw)[kK / 32][2][kPrepThreads], int row,
                                 float (&x)[8]) {
  if constexpr (kPlain) {
    unpack8(raw[m][row][threadIdx.x], x);
  } else {
#pragma unroll
    for (int e = 0; e < 8; ++e)
      x[e] = 0.0F;
    if (valid) load8(t, at, 32 * m + 8 * (static_cast<int>(threadIdx.x) % 4), dim, x);
  }
}

// 1 / |row| of rows i0 and i0 + 8 of q or k; 1 where no norm is asked for.
template <int kK, bool kPlain>
__device__ inline void row_norms(const Inputs& in, const Tensor& x, const std::int64_t (&at)[2],
                                 const bool (&valid)[2], int dim,
                                 const uint4 (&raw)[kK / 32][2][kPrepThreads], float (&rstd)[2]) {
  rstd[0] = rstd[1] = 1.0F;
  if (!in.l2norm) return;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float sum = 0.0F;
#pragma unroll 1
    for (int m = 0; m < kK / 32; ++m) {
      float value[8];
      load_step<kK, kPlain>(x, at[row], valid[row], m, dim, raw, row, value);
#pragma unroll
      for (int e = 0; e < 8; ++e)
        sum += value[e] * value[e];
    }
    sum += __shfl_xor_sync(0xffffffffU, sum, 1);
    sum += __shfl_xor_sync(0xffffffffU, sum, 2);
    rstd[row] = rsqrtf(sum + kNormEps);
  }
}

// Normalised and rounded as the tensor's type would.
template <bool kPlain>
__device__ inline void normalise(const Tensor& x, float rstd, float (&value)[8]) {
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    value[e] *= rstd;
    if (!kPlain && x.elem == Elem::kF16) value[e] = round_to(Elem::kF16, value[e]);
    value[e] = round_to(Elem::kBF16, value[e]);
  }
}

// To the nearest multiple of 2^-14, for |x| < 256; to the nearest integer.
__device__ inline float on_grid(float x) { return __fadd_rn(__fadd_rn(x, 768.0F), -768.0F); }
__device__ inline float nearest_integer(float x) {
  return __fadd_rn(__fadd_rn(x, 12582912.0F), -12582912.0F);
}

// Inclusive sums over the 16 rows of a warp's block; `low` holds rows r, `high` rows r + 8.
__device__ inline void scan_rows(int r, int c, float (&low)[8], float (&high)[8]) {
#pragma unroll
  for (int e = 0; e < 8; ++e) {
#pragma unroll
    for (int step = 1; step < 8; step *= 2) {
      const float a = __shfl_up_sync(0xffffffffU, low[e], 4 * step);
      const float b = __shfl_up_sync(0xffffffffU, high[e], 4 * step);
      if (r >= step) {
        low[e] += a;
        high[e] += b;
      }
    }
    high[e] += __shfl_sync(0xffffffffU, low[e], 28 + c);
  }
}

template <int kK, bool kPlain>
__global__ void __launch_bounds__(kPrepThreads, kPrepBlocks)
    prep_mma_kernel(const __grid_constant__ ChunkArgs args) {
  extern __shared__ __align__(1024) char raw_smem[];
  auto& plain = *reinterpret_cast<PlainPrepSmem<kK>*>(raw_smem);  // raw: kPlain only
  PrepSmem& s = plain.shared;
  constexpr int kM = kK / 32;
  const int HV = args.shape.HV;
  const int K = args.shape.K;
  const std::int64_t tile = blockIdx.x;
  const int hv = static_cast<int>(tile % HV);
  const Chunk chunk = chunk_at(args.map, tile / HV);
  if (chunk.length <= 0) return;
  const int tid = threadIdx.x;
  const int warp = tid / 32;
  const int lane = tid % 32;
  const int r = lane / 4;
  const int c = lane % 4;
  const int i0 = 16 * warp + r;
  const Inputs& in = args.in;

  if (tid < kC) {
    const float beta = tid < chunk.length
                           ? beta_of(in, chunk.row * in.beta.s0 + (chunk.begin + tid) * in.beta.s1 +
                                             hv * in.beta.s2)
                           : 0.0F;
    s.beta[tid] = beta;
    args.factors.beta[tile * kC + tid] = beta;
  }
  std::int64_t q_at[2];
  std::int64_t k_at[2];
  std::int64_t g_at[2];
  bool valid[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const std::int64_t t = chunk.begin + i0 + 8 * row;
    const int h = hv / args.shape.G;
    valid[row] = i0 + 8 * row < chunk.length;
    q_at[row] = chunk.row * in.q.s0 + t * in.q.s1 + h * in.q.s2;
    k_at[row] = chunk.row * in.k.s0 + t * in.k.s1 + h * in.k.s2;
    g_at[row] = chunk.row * in.g.s0 + t * in.g.s1 + hv * in.g.s2;
  }
  if constexpr (kPlain) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const std::uint16_t* from[3] = {
          static_cast<const std::uint16_t*>(in.q.data) + q_at[row] + 8 * c,
          static_cast<const std::uint16_t*>(in.k.data) + k_at[row] + 8 * c,
          static_cast<const std::uint16_t*>(in.g.data) + g_at[row] + 8 * c};
#pragma unroll
      for (int x = 0; x < 3; ++x) {
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          uint4* to = &plain.raw[x][m][row][tid];
          if (valid[row]) {
            ptx::cp_async(smem_address(to), from[x] + 32 * m);
          } else {
            *to = make_uint4(0, 0, 0, 0);
          }
        }
      }
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
  }
  float rstd_q[2];
  float rstd_k[2];
  row_norms<kK, kPlain>(in, in.q, q_at, valid, K, plain.raw[0], rstd_q);
  row_norms<kK, kPlain>(in, in.k, k_at, valid, K, plain.raw[1], rstd_k);
  const float exp_a = in.gate.a_log != nullptr ? expf(in.gate.a_log[hv]) : 1.0F;

  float n_acc[4][2][4];  // [block J, 3: the diagonal block][n-tile][element]
  float l_acc[4][2][4];
#pragma unroll
  for (int J = 0; J < 4; ++J) {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int x = 0; x < 4; ++x)
        n_acc[J][t][x] = l_acc[J][t][x] = 0.0F;
    }
  }
  auto* kt_out = static_cast<uint4*>(args.factors.kt) + tile * (kC * kK / 8);
  auto* kh_out = static_cast<uint4*>(args.factors.kh) + tile * (kC * kK / 8);
  auto* qt_out = static_cast<uint4*>(args.factors.qt) + tile * (kC * kK / 8);

#pragma unroll 1
  for (int m = 0; m < kM; ++m) {
    const int d = 32 * m + 8 * c;
    float l[2][8];  // decay sums inside the block
    float f[2][8];  // sums of clamped decays; the same numbers where nothing is clamped
    bool clamped = false;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      load_step<kK, kPlain>(in.g, g_at[row], valid[row], m, K, plain.raw[2], row, l[row]);
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float bias = in.gate.dt_bias != nullptr && d + e < K
                             ? __ldg(in.gate.dt_bias + static_cast<std::int64_t>(hv) * K + d + e)
                             : 0.0F;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float g = fast_decay(in.gate, bias, exp_a, l[row][e]) * kLog2E;
        l[row][e] = valid[row] && d + e < K ? g : 0.0F;
        f[row][e] = fmaxf(l[row][e], kDiagonalClamp);
        clamped = clamped || f[row][e] != l[row][e];
      }
    }
    scan_rows(r, c, l[0], l[1]);
    if (__any_sync(0xffffffffU, clamped)) {
      scan_rows(r, c, f[0], f[1]);
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        f[0][e] = l[0][e];
        f[1][e] = l[1][e];
      }
    }
    if (r == 7) {
      auto* total = reinterpret_cast<float4*>(&s.total[warp][8 * c]);
      total[0] = make_float4(l[1][0], l[1][1], l[1][2], l[1][3]);
      total[1] = make_float4(l[1][4], l[1][5], l[1][6], l[1][7]);
    }
    float q[2][8];
    float k[2][8];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      load_step<kK, kPlain>(in.q, q_at[row], valid[row], m, K, plain.raw[0], row, q[row]);
      load_step<kK, kPlain>(in.k, k_at[row], valid[row], m, K, plain.raw[1], row, k[row]);
      normalise<kPlain>(in.q, rstd_q[row], q[row]);
      normalise<kPlain>(in.k, rstd_k[row], k[row]);
    }
    // Diagonal block. Sums on a grid of 2^-14 and an integer anchor: the anchor then scales factors
    // by exact powers of two, so that what a row gives does not depend, to the last bit, on later
    // rows.
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      f[0][e] = on_grid(f[0][e]);
      f[1][e] = on_grid(f[1][e]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t a_q[4];
      std::uint32_t a_k[4];
      std::uint32_t b[2][2];
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const int e = 4 * half + 2 * pair;
        const float m0 = nearest_integer(__shfl_sync(0xffffffffU, f[1][e], c));  // row 8
        const float m1 = nearest_integer(__shfl_sync(0xffffffffU, f[1][e + 1], c));
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const float up0 = ptx::exp2_approx(f[row][e] - m0);
          const float up1 = ptx::exp2_approx(f[row][e + 1] - m1);
          const float down0 = ptx::exp2_approx(m0 - f[row][e]);
          const float down1 = ptx::exp2_approx(m1 - f[row][e + 1]);
          a_q[2 * pair + row] = pack_bf16(q[row][e] * up0, q[row][e + 1] * up1);
          a_k[2 * pair + row] = pack_bf16(k[row][e] * up0, k[row][e + 1] * up1);
          b[row][pair] = pack_bf16(k[row][e] * down0, k[row][e + 1] * down1);
        }
      }
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        ptx::mma_bf16(n_acc[3][t], a_q, b[t][0], b[t][1]);
        ptx::mma_bf16(l_acc[3][t], a_k, b[t][0], b[t][1]);
      }
    }
    __syncthreads();  // block totals before their readers; columns of the last step read

    // Row and column factors.
    std::uint32_t q_row[2][4];
    std::uint32_t k_row[2][4];
    std::uint32_t column[2][4];
    std::uint32_t kt[2][4];
    std::uint32_t qt[2][4];
    std::uint32_t kh[2][4];
    {  // channel constants: lane = channel
      float before = 0.0F;
      float after = 0.0F;
      float all = 0.0F;
#pragma unroll
      for (int J = 0; J < 4; ++J) {
        const float total = s.total[J][lane];
        all += total;
        if (J < warp) before += total;
        if (J > warp) after += total;
      }
      s.channel[warp][0][lane] = ptx::exp2_approx(before);
      s.channel[warp][1][lane] = ptx::exp2_approx(after);
      s.channel[warp][2][lane] = ptx::exp2_approx(s.total[1][lane]);
      s.channel[warp][3][lane] = ptx::exp2_approx(s.total[2][lane]);
      if (warp == 0) args.factors.decay[tile * kK + 32 * m + lane] = ptx::exp2_approx(all);
      __syncwarp();  // constants before their readers
    }
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      float up[2][2];
      float down[2][2];
      const float2 own = *reinterpret_cast<const float2*>(&s.total[warp][8 * c + 2 * p]);
      const float2 start = *reinterpret_cast<const float2*>(&s.channel[warp][0][8 * c + 2 * p]);
      const float2 end = *reinterpret_cast<const float2*>(&s.channel[warp][1][8 * c + 2 * p]);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        up[row][0] = ptx::exp2_approx(l[row][2 * p]);
        up[row][1] = ptx::exp2_approx(l[row][2 * p + 1]);
        down[row][0] = ptx::exp2_approx(own.x - l[row][2 * p]);
        down[row][1] = ptx::exp2_approx(own.y - l[row][2 * p + 1]);
      }
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float q0 = q[row][2 * p] * up[row][0];
        const float q1 = q[row][2 * p + 1] * up[row][1];
        const float k0 = k[row][2 * p] * up[row][0];
        const float k1 = k[row][2 * p + 1] * up[row][1];
        const float c0 = k[row][2 * p] * down[row][0];
        const float c1 = k[row][2 * p + 1] * down[row][1];
        q_row[row][p] = pack_bf16(q0, q1);
        k_row[row][p] = pack_bf16(k0, k1);
        column[row][p] = pack_bf16(c0, c1);
        kt[row][p] = pack_bf16(k0 * start.x, k1 * start.y);
        qt[row][p] = pack_bf16(in.scale * q0 * start.x, in.scale * q1 * start.y);
        kh[row][p] = pack_bf16(c0 * end.x, c1 * end.y);
      }
      if (warp == 0) {  // block 0 relative to e_1, for the rows of blocks 2 and 3
        const float2 over = *reinterpret_cast<const float2*>(&s.channel[0][2][8 * c + 2 * p]);
        auto* far = reinterpret_cast<std::uint32_t*>(&s.columns[1][0][lane]) + p;
        far[0] =
            pack_bf16(k[0][2 * p] * down[0][0] * over.x, k[0][2 * p + 1] * down[0][1] * over.y);
        far[32 * 4] =
            pack_bf16(k[1][2 * p] * down[1][0] * over.x, k[1][2 * p + 1] * down[1][1] * over.y);
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int at = (i0 + 8 * row) * (kK / 8) + 4 * m + c;
      kt_out[at] = make_uint4(kt[row][0], kt[row][1], kt[row][2], kt[row][3]);
      qt_out[at] = make_uint4(qt[row][0], qt[row][1], qt[row][2], qt[row][3]);
      kh_out[at] = make_uint4(kh[row][0], kh[row][1], kh[row][2], kh[row][3]);
      if (warp < 3) {
        s.columns[warp == 0 ? 0 : warp + 1][row][lane] =
            make_uint4(column[row][0], column[row][1], column[row][2], column[row][3]);
      }
    }
    __syncthreads();  // columns before their readers; totals read

    // Off-diagonal blocks (warp, J), the neighbour first: the others need the rows relative to e_1.
#pragma unroll
    for (int J = 2; J >= 0; --J) {
      if (J >= warp) continue;
      if (J == 1 && warp == 3) {
#pragma unroll
        for (int p = 0; p < 4; ++p) {
          const float x = s.channel[3][3][8 * c + 2 * p];
          const float y = s.channel[3][3][8 * c + 2 * p + 1];
#pragma unroll
          for (int row = 0; row < 2; ++row) {
            q_row[row][p] = pack_bf16(low_of(q_row[row][p]) * x, high_of(q_row[row][p]) * y);
            k_row[row][p] = pack_bf16(low_of(k_row[row][p]) * x, high_of(k_row[row][p]) * y);
          }
        }
      }
      const int source = J > 0 ? J + 1 : (warp == 1 ? 0 : 1);
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        const uint4 b = s.columns[source][t][lane];
        ptx::mma_bf16(n_acc[J][t], {q_row[0][0], q_row[1][0], q_row[0][1], q_row[1][1]}, b.x, b.y);
        ptx::mma_bf16(l_acc[J][t], {k_row[0][0], k_row[1][0], k_row[0][1], k_row[1][1]}, b.x, b.y);
        ptx::mma_bf16(n_acc[J][t], {q_row[0][2], q_row[1][2], q_row[0][3], q_row[1][3]}, b.z, b.w);
        ptx::mma_bf16(l_acc[J][t], {k_row[0][2], k_row[1][2], k_row[0][3], k_row[1][3]}, b.z, b.w);
      }
    }
  }

  // Lo to shared memory, N to its place; selection, not multiplication: the rest may be infinite.
  auto* n_out = static_cast<std::uint32_t*>(args.factors.n) + tile * (kC * kC / 2);
  const float beta[2] = {s.beta[i0], s.beta[i0 + 8]};
#pragma unroll
  for (int source = 0; source < 4; ++source) {
    if (source < 3 && source >= warp) continue;
    const int J = source == 3 ? warp : source;
    float(*block)[24] = s.lo[lower_block(warp, J)];
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      float x[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = r + 8 * (e / 2);
        const int j = 8 * t + 2 * c + e % 2;
        x[e] = source < 3 || i >= j ? in.scale * n_acc[source][t][e] : 0.0F;
        block[i][j] = source < 3 || i > j ? beta[e / 2] * l_acc[source][t][e] : 0.0F;
      }
      const int at = (16 * J + 8 * t + 2 * c) / 2;
      n_out[i0 * (kC / 2) + at] = pack_bf16(x[0], x[1]);
      n_out[(i0 + 8) * (kC / 2) + at] = pack_bf16(x[2], x[3]);
    }
  }
  __syncthreads();  // column factors read before A takes their place
  const uint4 zero = make_uint4(0, 0, 0, 0);
  for (int e = tid; e < kC * kC / 8; e += kPrepThreads) {
    reinterpret_cast<uint4*>(s.a)[e] = zero;
  }
  __syncwarp();  // the warp's diagonal block before its inverse
  {
    float(*block)[24] = s.lo[lower_block(warp, warp)];
    float x[16];  // column `lane` of the inverse
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float row[16];
#pragma unroll
      for (int p = 0; p < (i + 3) / 4; ++p) {
        const float4 v = *reinterpret_cast<const float4*>(&block[i][4 * p]);
        row[4 * p] = v.x, row[4 * p + 1] = v.y, row[4 * p + 2] = v.z, row[4 * p + 3] = v.w;
      }
      float sum = i == lane ? 1.0F : 0.0F;
#pragma unroll
      for (int m = 0; m < i; ++m)
        sum -= row[m] * x[m];
      x[i] = sum;
    }
    __syncwarp();  // Lo read before the inverse takes its place
    if (lane < 16) {
#pragma unroll
      for (int i = 0; i < 16; ++i)
        block[i][lane] = x[i];
    }
  }
  __syncthreads();  // Lo and the diagonal inverses before the merges; zeros before A

  // Column block J = warp of A, transposed: A_IJ^T = -(sum_M A_MJ^T Lo_IM^T) A_II^T.
  const std::uint32_t a_tile = smem_address(s.a);
  {
    const int J = warp;
    std::uint32_t high[4][4];
    std::uint32_t low[4][4];
    const float(*diagonal)[24] = s.lo[lower_block(J, J)];
#pragma unroll
    for (int x = 0; x < 4; ++x) {  // rows j = r (+8), columns m = 2c (+8)
      const int j = r + 8 * (x % 2);
      const int m = 2 * c + 8 * (x / 2);
      split_bf16(diagonal[m][j], diagonal[m + 1][j], &high[0][x], &low[0][x]);
      s.a[(swizzled<kC>(16 * J + m, 2 * J + j / 8) / 2) + j % 8] =
          static_cast<std::uint16_t>(high[0][x] & 0xffffU);
      s.a[(swizzled<kC>(16 * J + m + 1, 2 * J + j / 8) / 2) + j % 8] =
          static_cast<std::uint16_t>(high[0][x] >> 16);
    }
#pragma unroll
    for (int step = 1; step < 4; ++step) {
      const int I = J + step;
      if (I > 3) break;
      float acc[2][4] = {};
#pragma unroll
      for (int m = 0; m < step; ++m) {
        const float(*block)[24] = s.lo[lower_block(I, J + m)];
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          std::uint32_t b_high[2];
          std::uint32_t b_low[2];
          load_split_rows(block, t, r, c, b_high, b_low);
          mma_split(acc[t], high[m], low[m], b_high, b_low);
        }
      }
      std::uint32_t t_high[4];
      std::uint32_t t_low[4];
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        split_bf16(-acc[x / 2][2 * (x % 2)], -acc[x / 2][2 * (x % 2) + 1], &t_high[x], &t_low[x]);
      }
      float merged[2][4] = {};
      const float(*inverse)[24] = s.lo[lower_block(I, I)];
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        std::uint32_t b_high[2];
        std::uint32_t b_low[2];
        load_split_rows(inverse, t, r, c, b_high, b_low);
        mma_split(merged[t], t_high, t_low, b_high, b_low);
      }
#pragma unroll
      for (int x = 0; x < 4; ++x) {  // rows j = r (+8), columns i = 2c (+8)
        split_bf16(merged[x / 2][2 * (x % 2)], merged[x / 2][2 * (x % 2) + 1], &high[step][x],
                   &low[step][x]);
        const int j = r + 8 * (x % 2);
        const int i = 16 * I + 2 * c + 8 * (x / 2);
        s.a[(swizzled<kC>(i, 2 * J + j / 8) / 2) + j % 8] =
            static_cast<std::uint16_t>(high[step][x] & 0xffffU);
        s.a[(swizzled<kC>(i + 1, 2 * J + j / 8) / 2) + j % 8] =
            static_cast<std::uint16_t>(high[step][x] >> 16);
      }
    }
  }
  __syncthreads();  // A before it is copied out
  auto* a_out = static_cast<uint4*>(args.factors.a) + tile * (kC * kC / 8);
  for (int e = tid; e < kC * kC / 8; e += kPrepThreads) {
    a_out[e] = ptx::load_shared(a_tile + swizzled<kC>(e / 8, e % 8));
  }
}

}  // namespace kda::cuda
