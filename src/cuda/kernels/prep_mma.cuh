// Factors of one chunk with tensor cores: the same quantities as prep_simt.cuh, in bf16.
//
// Math: args.h (Factors) and spec "chunked forward", "safe exponent handling", "triangular
// inverse". With l the decay sum inside a 16-row block and e_J the sum at the end of block J (log2,
// inclusive):
//   off-diagonal blocks I > J: (q_i 2^(G_i - e_(I-1))) . (k_j 2^(e_J - G_j)) per channel, chained
//   by 2^(e_(I-1) - e_J): every factor is <= 1 for any gate, so underflow is harmless; diagonal
//   blocks in two levels: columns 0-7 relative to row 4, columns 8-15 (rows 8-15 only) relative to
//   row 12. The decay of a token is clamped at e^-20, below f32 resolution of what the state is
//   added to, so |exponent| <= 4 * 28.9. (Rows 8-15 relative to row 4 are <= 1 and lose nothing:
//   where they underflow, the product is below 2^-126 2^(3 * 28.9) = 2^-39.)
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
#include "cuda/tile/retry.cuh"
#include "cuda/tile/rows.cuh"

namespace kda::cuda {

inline constexpr int kPrepThreads = 128;
inline constexpr int kPrepBlocks = 3;              // per SM
inline constexpr float kDecayClamp = -28.853901F;  // log2 per token: -20 nat

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
  alignas(16) float bias[256];  // of the gate
};

// In the plain case every thread first sends for all it will read of q, k and g (its own pieces, so
// no barrier is needed), and the steps find them in shared memory. Once a step has read q and k,
// the same places hold the row factors until the column factors of the other warps are there.
template <int kK, bool kPlain>
struct PrepTile {
  PrepSmem shared;
  alignas(16) uint4 raw[3][kPlain ? kK / 32 : 1][2][kPrepThreads];
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
                                 const uint4 (&raw)[kPlain ? kK / 32 : 1][2][kPrepThreads], int row,
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
                                 const uint4 (&raw)[kPlain ? kK / 32 : 1][2][kPrepThreads],
                                 float (&rstd)[2]) {
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

// The same, normalised, rounded as the tensor's type would, in pairs.
template <int kK, bool kPlain>
__device__ inline uint4 load_unit(const Tensor& x, std::int64_t at, bool valid, int m, int dim,
                                  const uint4 (&raw)[kPlain ? kK / 32 : 1][2][kPrepThreads],
                                  int row, float rstd) {
  float value[8];
  load_step<kK, kPlain>(x, at, valid, m, dim, raw, row, value);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    value[e] *= rstd;
    if (!kPlain && x.elem == Elem::kF16) value[e] = round_to(Elem::kF16, value[e]);
  }
  return make_uint4(pack_bf16(value[0], value[1]), pack_bf16(value[2], value[3]),
                    pack_bf16(value[4], value[5]), pack_bf16(value[6], value[7]));
}

// To the nearest multiple of 2^-13, for |x| < 512; to the nearest integer.
__device__ inline float on_grid(float x) { return __fadd_rn(__fadd_rn(x, 1536.0F), -1536.0F); }
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

// Eight channels of a row times their factors, in place.
__device__ inline void rescale(const float* factor, uint4* row) {
  const float4 x = *reinterpret_cast<const float4*>(factor);
  const float4 y = *reinterpret_cast<const float4*>(factor + 4);
  *row = make_uint4(scale_pair(row->x, x.x, x.y), scale_pair(row->y, x.z, x.w),
                    scale_pair(row->z, y.x, y.y), scale_pair(row->w, y.z, y.w));
}

// One step of a 16x16 block: rows r and r + 8 times columns in fragment order. Loads by assembly
// stay where they are: all blocks' at once would not fit into registers.
__device__ inline void add_block(const uint4& row, const uint4& row8, const uint4 (&columns)[2][32],
                                 int lane, float (&acc)[2][4]) {
  const uint4 x = ptx::load_shared(smem_address(&row));
  const uint4 y = ptx::load_shared(smem_address(&row8));
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    const uint4 b = ptx::load_shared(smem_address(&columns[t][lane]));
    ptx::mma_bf16(acc[t], {x.x, y.x, x.y, y.y}, b.x, b.y);
    ptx::mma_bf16(acc[t], {x.z, y.z, x.w, y.w}, b.z, b.w);
  }
}

template <int kK, bool kPlain>
__device__ __forceinline__ void prep_mma_tile(const ChunkArgs& args, std::int64_t tile,
                                              PrepTile<kK, kPlain>& own) {
  PrepSmem& s = own.shared;
  constexpr int kM = kK / 32;
  const int HV = args.shape.HV;
  const int K = args.shape.K;
  const int hv = static_cast<int>(static_cast<unsigned>(tile) % static_cast<unsigned>(HV));
  const Chunk chunk = chunk_at(args.map, static_cast<unsigned>(tile) / static_cast<unsigned>(HV));
  if (chunk.length <= 0) return;
  const int tid = threadIdx.x;
  const int warp = tid / 32;
  const int lane = tid % 32;
  const int r = lane / 4;
  const int c = lane % 4;
  const int i0 = 16 * warp + r;
  const Inputs& in = args.in;

  for (int d = tid; d < kK; d += kPrepThreads) {
    s.bias[d] = in.gate.dt_bias != nullptr && d < K
                    ? in.gate.dt_bias[static_cast<std::int64_t>(hv) * K + d]
                    : 0.0F;
  }
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
          uint4* to = &own.raw[x][m][row][tid];
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
  row_norms<kK, kPlain>(in, in.q, q_at, valid, K, own.raw[0], rstd_q);
  row_norms<kK, kPlain>(in, in.k, k_at, valid, K, own.raw[1], rstd_k);
  const float exp_a = in.gate.a_log != nullptr ? expf(in.gate.a_log[hv]) : 1.0F;

  __syncthreads();  // bias before its readers

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
  // The thread's first piece in the factor tiles; one offset for all three saves registers.
  std::int64_t out_at = tile * (kC * kK / 8) + i0 * (kK / 8) + c;

#pragma unroll 1
  for (int m = 0; m < kM; ++m, out_at += 4) {
    const int d = 32 * m + 8 * c;
    float l[2][8];  // decay sums inside the block
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      load_step<kK, kPlain>(in.g, g_at[row], valid[row], m, K, own.raw[2], row, l[row]);
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float bias = s.bias[d + e];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float g = fast_decay(in.gate, bias, exp_a, l[row][e]) * kLog2E;
        l[row][e] = valid[row] && d + e < K ? fmaxf(g, kDecayClamp) : 0.0F;
      }
    }
    scan_rows(r, c, l[0], l[1]);
    if (r == 7) {
      auto* total = reinterpret_cast<float4*>(&s.total[warp][8 * c]);
      total[0] = make_float4(l[1][0], l[1][1], l[1][2], l[1][3]);
      total[1] = make_float4(l[1][4], l[1][5], l[1][6], l[1][7]);
    }
    // Unit q and k, later the row factors, stay in the thread's own places in shared memory: what
    // every phase below needs at once would not fit into registers.
    uint4(&q)[2][kPrepThreads] = own.raw[0][kPlain ? m : 0];
    uint4(&k)[2][kPrepThreads] = own.raw[1][kPlain ? m : 0];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      q[row][tid] =
          load_unit<kK, kPlain>(in.q, q_at[row], valid[row], m, K, own.raw[0], row, rstd_q[row]);
      k[row][tid] =
          load_unit<kK, kPlain>(in.k, k_at[row], valid[row], m, K, own.raw[1], row, rstd_k[row]);
    }
    // Diagonal block. Sums on a grid of 2^-13 and integer anchors: an anchor then scales factors by
    // exact powers of two, so that what a row gives does not depend, to the last bit, on later
    // rows.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int t = 0; t < 2; ++t) {  // columns 8 t .. 8 t + 7
        std::uint32_t a_q[4] = {};
        std::uint32_t a_k[4] = {};
        std::uint32_t b[2];
        uint2 unit_q[2];
        uint2 unit_k[2];
#pragma unroll
        for (int row = t; row < 2; ++row) {
          unit_q[row] = ptx::load_shared_half(smem_address(&q[row][tid]) + 8 * half);
          unit_k[row] = ptx::load_shared_half(smem_address(&k[row][tid]) + 8 * half);
        }
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          const int e = 4 * half + 2 * pair;
          const float own0 = on_grid(l[t][e]);
          const float own1 = on_grid(l[t][e + 1]);
          const float anchor0 = nearest_integer(__shfl_sync(0xffffffffU, own0, 16 + c));
          const float anchor1 = nearest_integer(__shfl_sync(0xffffffffU, own1, 16 + c));
          b[pair] = scale_pair(pair == 0 ? unit_k[t].x : unit_k[t].y,
                               ptx::exp2_approx(anchor0 - own0), ptx::exp2_approx(anchor1 - own1));
#pragma unroll
          for (int row = t; row < 2; ++row) {
            const float up0 = ptx::exp2_approx(on_grid(l[row][e]) - anchor0);
            const float up1 = ptx::exp2_approx(on_grid(l[row][e + 1]) - anchor1);
            a_q[2 * pair + row] = scale_pair(pair == 0 ? unit_q[row].x : unit_q[row].y, up0, up1);
            a_k[2 * pair + row] = scale_pair(pair == 0 ? unit_k[row].x : unit_k[row].y, up0, up1);
          }
        }
        ptx::mma_bf16(n_acc[3][t], a_q, b[0], b[1]);
        ptx::mma_bf16(l_acc[3][t], a_k, b[0], b[1]);
      }
    }
    __syncthreads();  // block totals before their readers; columns of the last step read

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
    for (int row = 0; row < 2; ++row) {  // column factors
      const uint4 unit_k = ptx::load_shared(smem_address(&k[row][tid]));
      const std::uint32_t k_pair[4] = {unit_k.x, unit_k.y, unit_k.z, unit_k.w};
      std::uint32_t column[4];
      std::uint32_t kh[4];
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const float2 own = *reinterpret_cast<const float2*>(&s.total[warp][8 * c + 2 * p]);
        const float2 end = *reinterpret_cast<const float2*>(&s.channel[warp][1][8 * c + 2 * p]);
        const float k0 = low_of(k_pair[p]) * ptx::exp2_approx(own.x - l[row][2 * p]);
        const float k1 = high_of(k_pair[p]) * ptx::exp2_approx(own.y - l[row][2 * p + 1]);
        column[p] = pack_bf16(k0, k1);
        kh[p] = pack_bf16(k0 * end.x, k1 * end.y);
        if (warp == 0) {  // block 0 relative to e_1, for the rows of blocks 2 and 3
          const float2 over = *reinterpret_cast<const float2*>(&s.channel[0][2][8 * c + 2 * p]);
          reinterpret_cast<std::uint32_t*>(&s.columns[1][row][lane])[p] =
              pack_bf16(k0 * over.x, k1 * over.y);
        }
      }
      static_cast<uint4*>(args.factors.kh)[out_at + row * kK] =
          make_uint4(kh[0], kh[1], kh[2], kh[3]);
      if (warp < 3) {
        s.columns[warp == 0 ? 0 : warp + 1][row][lane] =
            make_uint4(column[0], column[1], column[2], column[3]);
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {  // row factors
      std::uint32_t x[4];
      std::uint32_t y[4];
      const uint4 unit_q = ptx::load_shared(smem_address(&q[row][tid]));
      const uint4 unit_k = ptx::load_shared(smem_address(&k[row][tid]));
      const std::uint32_t q_pair[4] = {unit_q.x, unit_q.y, unit_q.z, unit_q.w};
      const std::uint32_t k_pair[4] = {unit_k.x, unit_k.y, unit_k.z, unit_k.w};
      std::uint32_t kt[4];
      std::uint32_t qt[4];
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const float2 start = *reinterpret_cast<const float2*>(&s.channel[warp][0][8 * c + 2 * p]);
        const float up0 = ptx::exp2_approx(l[row][2 * p]);
        const float up1 = ptx::exp2_approx(l[row][2 * p + 1]);
        const float q0 = low_of(q_pair[p]) * up0;
        const float q1 = high_of(q_pair[p]) * up1;
        const float k0 = low_of(k_pair[p]) * up0;
        const float k1 = high_of(k_pair[p]) * up1;
        x[p] = pack_bf16(q0, q1);
        y[p] = pack_bf16(k0, k1);
        kt[p] = pack_bf16(k0 * start.x, k1 * start.y);
        qt[p] = pack_bf16(in.scale * q0 * start.x, in.scale * q1 * start.y);
      }
      q[row][tid] = make_uint4(x[0], x[1], x[2], x[3]);
      k[row][tid] = make_uint4(y[0], y[1], y[2], y[3]);
      static_cast<uint4*>(args.factors.kt)[out_at + row * kK] =
          make_uint4(kt[0], kt[1], kt[2], kt[3]);
      static_cast<uint4*>(args.factors.qt)[out_at + row * kK] =
          make_uint4(qt[0], qt[1], qt[2], qt[3]);
    }
    __syncthreads();  // columns before their readers; totals read

    // Off-diagonal blocks (warp, J), the neighbour first: the others need the rows relative to e_1.
#pragma unroll
    for (int J = 2; J >= 0; --J) {
      if (J >= warp) continue;
      if (J == 1 && warp == 3) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          rescale(&s.channel[3][3][8 * c], &q[row][tid]);
          rescale(&s.channel[3][3][8 * c], &k[row][tid]);
        }
      }
      const int source = J > 0 ? J + 1 : (warp == 1 ? 0 : 1);
      add_block(q[0][tid], q[1][tid], s.columns[source], lane, n_acc[J]);
      add_block(k[0][tid], k[1][tid], s.columns[source], lane, l_acc[J]);
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

template <int kK, bool kPlain>
__global__ void __launch_bounds__(kPrepThreads, kPrepBlocks)
    prep_mma_kernel(const __grid_constant__ ChunkArgs args) {
  extern __shared__ __align__(1024) char raw_smem[];
  prep_mma_tile<kK, kPlain>(args, blockIdx.x, *reinterpret_cast<PrepTile<kK, kPlain>*>(raw_smem));
}

// Blocks per SM of the kernel below, which rarely has work: with fewer, 128 channels fit into the
// registers.
template <int kK>
inline constexpr int kPrepRetryBlocks = kK == 128 ? kPrepBlocks - 1 : kPrepBlocks;

// The same for the chunks of args.retry; any grid.
template <int kK>
__global__ void __launch_bounds__(kPrepThreads, kPrepRetryBlocks<kK>)
    prep_retry_kernel(const __grid_constant__ ChunkArgs args) {
  extern __shared__ __align__(1024) char raw_smem[];
  auto& own = *reinterpret_cast<PrepTile<kK, true>*>(raw_smem);
  for_each_retry<kPrepThreads>(
      args, [&](std::int64_t tile) { prep_mma_tile<kK, true>(args, tile, own); });
}

}  // namespace kda::cuda
