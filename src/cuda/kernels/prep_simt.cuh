// Factors of one chunk in f32 arithmetic, for any K and any gate.
//
// Math: spec "chunked forward", form D:
//   Lo_ij = beta_i sum_d k_id k_jd 2^(G_id - G_jd) (i > j),  N_ij = sum_d q_id k_jd 2^(..) (i >= j)
//   kt = k 2^G, kh = k 2^(G_last - G), qt = scale q 2^G, n = scale N, a = (I + Lo)^-1.
// Every pair has its own exponential, so no anchor and no clamp is needed (exponents <= 0).
// Grid: num_chunks * HV blocks of 256 threads. Shared memory: 3 tiles [64,65] and 4 [64,33] f32.
#pragma once

#include "cuda/tile/chunk.cuh"
#include "cuda/tile/element.cuh"

namespace kda::cuda {

inline constexpr int kSimtThreads = 256;
inline constexpr int kSimtTile = 32;  // channels per step

struct SimtPrepSmem {
  float n[kC][kC + 1];
  float lo[kC][kC + 1];
  float a[kC][kC + 1];
  float q[kC][kSimtTile + 1];
  float k[kC][kSimtTile + 1];
  float g[kC][kSimtTile + 1];      // prefix sum, and what its rounding to f32 lost: resets
  float g_low[kC][kSimtTile + 1];  // (-1000) must not cost the small decays around them
  float rstd_q[kC];
  float rstd_k[kC];
  float beta[kC];
};

// 1/sqrt(sum x^2 + eps) of the chunk's rows, one warp per row; 1 where no norm is asked for.
__device__ inline void row_rstd(const Inputs& in, const Tensor& x, const Chunk& chunk,
                                std::int64_t head, int K, float* rstd) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  for (int i = warp; i < kC; i += kSimtThreads / 32) {
    float sum = 0.0F;
    if (in.l2norm && i < chunk.length) {
      const std::int64_t row = chunk.row * x.s0 + (chunk.begin + i) * x.s1 + head * x.s2;
      for (int d = lane; d < K; d += 32) {
        const float value = load(x, row + d * x.s3);
        sum += value * value;
      }
    }
    sum = warp_sum(sum);
    if (lane == 0) rstd[i] = in.l2norm ? 1.0F / sqrtf(sum + kNormEps) : 1.0F;
  }
}

// q, k (normalised, rounded) and the inclusive log2 decay sum of channels [d0, d0 + 32).
__device__ inline void load_qkg(const ChunkArgs& args, const Chunk& chunk, int hv, int d0,
                                const float* rstd_q, const float* rstd_k, float (*q)[kSimtTile + 1],
                                float (*k)[kSimtTile + 1], float (*g)[kSimtTile + 1],
                                float (*g_low)[kSimtTile + 1]) {
  const Inputs& in = args.in;
  const int K = args.shape.K;
  const int h = hv / args.shape.G;
  for (int e = threadIdx.x; e < kC * kSimtTile; e += kSimtThreads) {
    const int i = e / kSimtTile;
    const int d = d0 + e % kSimtTile;
    float qv = 0.0F;
    float kv = 0.0F;
    float gv = 0.0F;
    if (i < chunk.length && d < K) {
      const std::int64_t t = chunk.begin + i;
      qv = load(in.q, chunk.row * in.q.s0 + t * in.q.s1 + h * in.q.s2 + d * in.q.s3);
      kv = load(in.k, chunk.row * in.k.s0 + t * in.k.s1 + h * in.k.s2 + d * in.k.s3);
      gv = load(in.g, chunk.row * in.g.s0 + t * in.g.s1 + hv * in.g.s2 + d * in.g.s3);
      gv = gate_decay(in.gate, gate_channel(in.gate, hv, d, K), gv) * kLog2E;
      if (in.l2norm) {
        qv = round_to(in.q.elem, qv * rstd_q[i]);
        kv = round_to(in.k.elem, kv * rstd_k[i]);
      }
    }
    q[i][e % kSimtTile] = qv;
    k[i][e % kSimtTile] = kv;
    g[i][e % kSimtTile] = gv;
  }
  __syncthreads();  // raw decays before the prefix sum
  if (threadIdx.x < kSimtTile) {
    double sum = 0.0;
    for (int i = 0; i < kC; ++i) {
      sum += static_cast<double>(g[i][threadIdx.x]);
      const float high = static_cast<float>(sum);
      g[i][threadIdx.x] = high;
      g_low[i][threadIdx.x] = static_cast<float>(sum - static_cast<double>(high));
    }
  }
  __syncthreads();  // prefix sums before their readers
}

// Shared memory is for two blocks per SM; without that bound the compiler saves registers for four.
__global__ void __launch_bounds__(kSimtThreads, 2)
    prep_simt_kernel(const __grid_constant__ ChunkArgs args) {
  extern __shared__ char raw_smem[];
  SimtPrepSmem& s = *reinterpret_cast<SimtPrepSmem*>(raw_smem);
  const int HV = args.shape.HV;
  const int K = args.shape.K;
  const std::int64_t c = blockIdx.x / HV;
  const int hv = static_cast<int>(blockIdx.x % HV);
  const Chunk chunk = chunk_at(args.map, c);
  if (chunk.length <= 0) return;
  const std::int64_t tile = c * HV + hv;
  const int h = hv / args.shape.G;
  const int tid = threadIdx.x;

  row_rstd(args.in, args.in.q, chunk, h, K, s.rstd_q);
  row_rstd(args.in, args.in.k, chunk, h, K, s.rstd_k);
  if (tid < kC) {
    const Tensor& b = args.in.beta;
    s.beta[tid] = tid < chunk.length
                      ? beta_of(args.in, chunk.row * b.s0 + (chunk.begin + tid) * b.s1 + hv * b.s2)
                      : 0.0F;
    args.factors.beta[tile * kC + tid] = s.beta[tid];
  }
  __syncthreads();  // norms before the first tile

  // N and Lo: thread (ty, tx) owns pairs (ty + 16 a, tx + 16 b).
  const int tx = tid % 16;
  const int ty = tid / 16;
  float acc_n[4][4] = {};
  float acc_l[4][4] = {};
  for (int d0 = 0; d0 < K; d0 += kSimtTile) {
    load_qkg(args, chunk, hv, d0, s.rstd_q, s.rstd_k, s.q, s.k, s.g, s.g_low);
#pragma unroll 2
    for (int d = 0; d < kSimtTile; ++d) {
#pragma unroll
      for (int a = 0; a < 4; ++a) {
        const int i = ty + 16 * a;
#pragma unroll
        for (int b = 0; b < 4; ++b) {
          const int j = tx + 16 * b;
          if (i < j) continue;
          const float kj =
              s.k[j][d] * exp2f((s.g[i][d] - s.g[j][d]) + (s.g_low[i][d] - s.g_low[j][d]));
          acc_n[a][b] += s.q[i][d] * kj;
          acc_l[a][b] += s.k[i][d] * kj;
        }
      }
    }
    __syncthreads();  // tile read before the next one is written
  }
#pragma unroll
  for (int a = 0; a < 4; ++a) {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const int i = ty + 16 * a;
      const int j = tx + 16 * b;
      s.n[i][j] = i >= j ? args.in.scale * acc_n[a][b] : 0.0F;
      s.lo[i][j] = i > j ? s.beta[i] * acc_l[a][b] : 0.0F;
    }
  }
  __syncthreads();  // Lo before the substitution
  if (tid < kC) {   // column tid of A
    for (int i = 0; i < tid; ++i)
      s.a[i][tid] = 0.0F;
    s.a[tid][tid] = 1.0F;
    for (int i = tid + 1; i < kC; ++i) {
      float sum = 0.0F;
      for (int m = tid; m < i; ++m)
        sum += s.lo[i][m] * s.a[m][tid];
      s.a[i][tid] = -sum;
    }
  }
  __syncthreads();  // A before it is stored
  float* n_out = static_cast<float*>(args.factors.n) + tile * kC * kC;
  float* a_out = static_cast<float*>(args.factors.a) + tile * kC * kC;
  for (int e = tid; e < kC * kC; e += kSimtThreads) {
    n_out[e] = s.n[e / kC][e % kC];
    a_out[e] = s.a[e / kC][e % kC];
  }

  // kt, kh, qt: thread owns channel tid % 32 and rows tid / 32 + 8 a.
  const int ch = tid % kSimtTile;
  float* kt_out = static_cast<float*>(args.factors.kt) + tile * kC * K;
  float* kh_out = static_cast<float*>(args.factors.kh) + tile * kC * K;
  float* qt_out = static_cast<float*>(args.factors.qt) + tile * kC * K;
  for (int d0 = 0; d0 < K; d0 += kSimtTile) {
    load_qkg(args, chunk, hv, d0, s.rstd_q, s.rstd_k, s.q, s.k, s.g, s.g_low);
    const float last = s.g[kC - 1][ch];  // rows past the end repeat the last sum
    const float last_low = s.g_low[kC - 1][ch];
    for (int i = tid / kSimtTile; i < kC; i += kSimtThreads / kSimtTile) {
      if (d0 + ch >= K) continue;
      const std::int64_t at = static_cast<std::int64_t>(i) * K + d0 + ch;
      const float e = exp2f(s.g[i][ch]);
      kt_out[at] = s.k[i][ch] * e;
      kh_out[at] = s.k[i][ch] * exp2f((last - s.g[i][ch]) + (last_low - s.g_low[i][ch]));
      qt_out[at] = args.in.scale * s.q[i][ch] * e;
      if (i == 0) args.factors.decay[tile * K + d0 + ch] = exp2f(last);
    }
    __syncthreads();  // tile read before the next one is written
  }
}

}  // namespace kda::cuda
