// Chunk-local part of the backward in f32 arithmetic: three kernels over (chunk, value head).
//
//   wy:         U = A (beta (v - kt S))
//   output_bwd: dN = scale tril(do U^T),  P = -strict_tril(X U^T)
//   intra_bwd:  dq, dk (per value head), dg and the partial sums of dbeta, d_dt_bias, da_log:
//     dq   = scale 2^G (do S^T) + sum_{j<=i} dN_ij k_j 2^(G_i - G_j)
//     row  = -2^G (X S^T) + sum_{j<i} P_ij k_j 2^(G_i - G_j);       kRow = beta row
//     kCol = 2^(G_last - G) (U D^T) + sum_{i>=j} (dN_ij q_i + P_ij beta_i k_i) 2^(G_i - G_j)
//     dk = kRow + kCol;  dbeta = X.v + row.k
//     dG = q dq + k kRow - k kCol, last row += 2^G_last sum_v S D + sum_i k_i kCol_inter_i;
//     dg = suffix sum of dG inside the chunk, then the gate's backward.
// Source of the form: spec "the same backward with fewer products". Grid: see each kernel; 256
// threads.
#pragma once

#include "cuda/kernels/scan_simt.cuh"

namespace kda::cuda {

struct SimtWySmem {
  float s[kSimtTile][kScanCols + 1];
  float m[kC][kScanCols + 1];
  float v[kC][kScanCols + 1];
  float z[kC][kScanCols + 1];
};

// Grid: num_chunks * HV * ceil(V / 32).
__global__ void __launch_bounds__(kSimtThreads)
    wy_simt_kernel(const __grid_constant__ ChunkArgs args) {
  extern __shared__ char raw_smem[];
  SimtWySmem& s = *reinterpret_cast<SimtWySmem*>(raw_smem);
  const int HV = args.shape.HV;
  const int K = args.shape.K;
  const int V = args.shape.V;
  const int slices = (V + kScanCols - 1) / kScanCols;
  const int v0 = static_cast<int>(blockIdx.x % slices) * kScanCols;
  const int hv = static_cast<int>(blockIdx.x / slices % HV);
  const std::int64_t c = blockIdx.x / slices / HV;
  const Chunk chunk = chunk_at(args.map, c);
  if (chunk.length <= 0) return;
  const std::int64_t tile = c * HV + hv;
  const int tx = threadIdx.x % 32;
  const int ty = threadIdx.x / 32;
  load_value_tile(args.in.v, chunk, hv, v0, V, s.v);
  float acc[8] = {};
  for (int d0 = 0; d0 < K; d0 += 32) {
    load_matrix_tile(static_cast<const float*>(args.factors.kt) + tile * kC * K, K, d0, K, s.m);
    for (int e = threadIdx.x; e < 32 * kScanCols; e += kSimtThreads) {
      const int d = d0 + e / kScanCols;
      const int j = v0 + e % kScanCols;
      s.s[e / kScanCols][e % kScanCols] =
          d < K && j < V
              ? load(args.h, c * args.h.s0 + hv * args.h.s1 + d * args.h.s2 + j * args.h.s3)
              : 0.0F;
    }
    __syncthreads();  // tiles before the products
    step_rows(s.m, s.s, 0, acc);
    __syncthreads();  // products before the next tiles
  }
#pragma unroll
  for (int a = 0; a < 8; ++a) {
    const int i = ty + 8 * a;
    s.z[i][tx] = args.factors.beta[tile * kC + i] * (s.v[i][tx] - acc[a]);
    acc[a] = 0.0F;
  }
  for (int m0 = 0; m0 < kC; m0 += 32) {
    load_matrix_tile(static_cast<const float*>(args.factors.a) + tile * kC * kC, kC, m0, kC, s.m);
    __syncthreads();  // z and the tile before the products
    step_rows(s.m, s.z, m0, acc);
    __syncthreads();  // products before the next tile
  }
#pragma unroll
  for (int a = 0; a < 8; ++a) {
    if (v0 + tx < V) args.u[(tile * kC + ty + 8 * a) * V + v0 + tx] = acc[a];
  }
}

struct SimtPairSmem {
  float d_o[kC][kScanCols + 1];
  float u[kC][kScanCols + 1];
  float x[kC][kScanCols + 1];
};

// Rows of a [num_chunks,HV,64,V] f32 buffer.
__device__ inline void load_chunk_rows(const float* from, std::int64_t tile, int v0, int V,
                                       float (*to)[kScanCols + 1]) {
  load_matrix_tile(from + tile * kC * V, V, v0, V, to);
}

// Grid: num_chunks * HV.
__global__ void __launch_bounds__(kSimtThreads)
    output_bwd_simt_kernel(const __grid_constant__ ChunkArgs args) {
  extern __shared__ char raw_smem[];
  SimtPairSmem& s = *reinterpret_cast<SimtPairSmem*>(raw_smem);
  const int HV = args.shape.HV;
  const int V = args.shape.V;
  const int hv = static_cast<int>(blockIdx.x % HV);
  const std::int64_t c = blockIdx.x / HV;
  const Chunk chunk = chunk_at(args.map, c);
  if (chunk.length <= 0) return;
  const std::int64_t tile = c * HV + hv;
  const int tx = threadIdx.x % 16;
  const int ty = threadIdx.x / 16;
  float d_n[4][4] = {};
  float p[4][4] = {};
  for (int v0 = 0; v0 < V; v0 += kScanCols) {
    load_value_tile(args.d_o, chunk, hv, v0, V, s.d_o);
    load_chunk_rows(args.u, tile, v0, V, s.u);
    load_chunk_rows(static_cast<const float*>(args.x.data), tile, v0, V, s.x);
    __syncthreads();  // tiles before the products
#pragma unroll 4
    for (int m = 0; m < kScanCols; ++m) {
#pragma unroll
      for (int a = 0; a < 4; ++a) {
#pragma unroll
        for (int b = 0; b < 4; ++b) {
          const float u = s.u[tx + 16 * b][m];
          d_n[a][b] += s.d_o[ty + 16 * a][m] * u;
          p[a][b] += s.x[ty + 16 * a][m] * u;
        }
      }
    }
    __syncthreads();  // products before the next tiles
  }
#pragma unroll
  for (int a = 0; a < 4; ++a) {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const int i = ty + 16 * a;
      const int j = tx + 16 * b;
      args.d_n[(tile * kC + i) * kC + j] = i >= j ? args.in.scale * d_n[a][b] : 0.0F;
      args.p[(tile * kC + i) * kC + j] = i > j ? -p[a][b] : 0.0F;
    }
  }
}

struct SimtIntraSmem {
  float d_n[kC][kC + 1];
  float p[kC][kC + 1];
  float q[kC][kSimtTile + 1];
  float k[kC][kSimtTile + 1];
  float g[kC][kSimtTile + 1];
  float g_low[kC][kSimtTile + 1];
  float d_o[kC][kScanCols + 1];  // later dG
  float u[kC][kScanCols + 1];
  float x[kC][kScanCols + 1];
  union {
    struct {  // during the products with S and D
      float s[kSimtTile][kScanCols + 1];
      float d[kSimtTile][kScanCols + 1];
    };
    struct {  // before
      float rstd_q[kC];
      float rstd_k[kC];
    };
    struct {                     // after
      float part[8][kSimtTile];  // per warp, per channel
      float extra[kSimtTile];
    };
  };
  float beta[kC];
};
static_assert(sizeof(SimtIntraSmem) <= 99 * 1024, "GPUs of compute capability 8.6 and 8.9");

// Grid: num_chunks * HV * ceil(K / 32).
__global__ void __launch_bounds__(kSimtThreads)
    intra_bwd_simt_kernel(const __grid_constant__ ChunkArgs args) {
  extern __shared__ char raw_smem[];
  SimtIntraSmem& s = *reinterpret_cast<SimtIntraSmem*>(raw_smem);
  const int HV = args.shape.HV;
  const int K = args.shape.K;
  const int V = args.shape.V;
  const int tiles_k = (K + kSimtTile - 1) / kSimtTile;
  const int kt = static_cast<int>(blockIdx.x % tiles_k);
  const int d0 = kt * kSimtTile;
  const int hv = static_cast<int>(blockIdx.x / tiles_k % HV);
  const std::int64_t c = blockIdx.x / tiles_k / HV;
  const Chunk chunk = chunk_at(args.map, c);
  if (chunk.length <= 0) return;
  const std::int64_t tile = c * HV + hv;
  const int h = hv / args.shape.G;
  const int tid = threadIdx.x;
  const int ch = tid % 32;
  const int ty = tid / 32;
  const bool live = d0 + ch < K;

  row_rstd(args.in, args.in.q, chunk, h, K, s.rstd_q);
  row_rstd(args.in, args.in.k, chunk, h, K, s.rstd_k);
  if (tid < kC) s.beta[tid] = args.factors.beta[tile * kC + tid];
  for (int e = tid; e < kC * kC; e += kSimtThreads) {
    s.d_n[e / kC][e % kC] = args.d_n[tile * kC * kC + e];
    s.p[e / kC][e % kC] = args.p[tile * kC * kC + e];
  }
  __syncthreads();  // norms before the tile
  load_qkg(args, chunk, hv, d0, s.rstd_q, s.rstd_k, s.q, s.k, s.g, s.g_low);

  // Products with S and D: thread owns channel ch, rows ty + 8 a.
  float dq[8] = {};
  float row[8] = {};
  float col[8] = {};
  float sd = 0.0F;  // its share of sum_v S D
  for (int v0 = 0; v0 < V; v0 += kScanCols) {
    load_value_tile(args.d_o, chunk, hv, v0, V, s.d_o);
    load_chunk_rows(args.u, tile, v0, V, s.u);
    load_chunk_rows(static_cast<const float*>(args.x.data), tile, v0, V, s.x);
    for (int e = tid; e < kSimtTile * kScanCols; e += kSimtThreads) {
      const int d = d0 + e / kScanCols;
      const int j = v0 + e % kScanCols;
      const bool in = d < K && j < V;
      const Tensor& hs = args.h;
      const Tensor& ds = args.d_states;
      s.s[e / kScanCols][e % kScanCols] =
          in ? load(hs, c * hs.s0 + hv * hs.s1 + d * hs.s2 + j * hs.s3) : 0.0F;
      s.d[e / kScanCols][e % kScanCols] =
          in ? load(ds, c * ds.s0 + hv * ds.s1 + d * ds.s2 + j * ds.s3) : 0.0F;
    }
    __syncthreads();  // tiles before the products
#pragma unroll 4
    for (int m = 0; m < kScanCols; ++m) {
      const float sv = s.s[ch][m];
      const float dv = s.d[ch][m];
      if (m % 8 == ty) sd += sv * dv;
#pragma unroll
      for (int a = 0; a < 8; ++a) {
        const int i = ty + 8 * a;
        dq[a] += s.d_o[i][m] * sv;
        row[a] += s.x[i][m] * sv;
        col[a] += s.u[i][m] * dv;
      }
    }
    __syncthreads();  // products before the next tiles
  }
  const float last = s.g[kC - 1][ch];
  float inter = exp2f(last) * sd;  // share of the gradient that enters at the chunk's end
#pragma unroll
  for (int a = 0; a < 8; ++a) {
    const int i = ty + 8 * a;
    const float gi = s.g[i][ch];
    const float gi_low = s.g_low[i][ch];
    const float e = exp2f(gi);
    dq[a] *= args.in.scale * e;
    row[a] *= -e;
    col[a] *= exp2f((last - gi) + (s.g_low[kC - 1][ch] - gi_low));
    inter += s.k[i][ch] * col[a];
#pragma unroll 2
    for (int j = 0; j <= i; ++j) {
      const float kj = s.k[j][ch] * exp2f((gi - s.g[j][ch]) + (gi_low - s.g_low[j][ch]));
      dq[a] += s.d_n[i][j] * kj;
      row[a] += s.p[i][j] * kj;
    }
#pragma unroll 2
    for (int j = i; j < kC; ++j) {
      col[a] += (s.d_n[j][i] * s.q[j][ch] + s.beta[j] * s.p[j][i] * s.k[j][ch]) *
                exp2f((s.g[j][ch] - gi) + (s.g_low[j][ch] - gi_low));
    }
  }
  s.part[ty][ch] = inter;
#pragma unroll
  for (int a = 0; a < 8; ++a) {
    const int i = ty + 8 * a;
    const float k_row = s.beta[i] * row[a];
    const float kv = s.k[i][ch];
    s.d_o[i][ch] = s.q[i][ch] * dq[a] + kv * (k_row - col[a]);  // dG; the tile of do is dead
    const float db = warp_sum(kv * row[a]);
    if (i >= chunk.length) continue;
    const std::int64_t token = chunk.row * args.shape.T + chunk.begin + i;
    if (ch == 0) {
      args.dbeta_part[(kt * args.shape.B * args.shape.T + token) * HV + hv] = db;
    }
    if (live) {
      args.dq_part[(token * HV + hv) * K + d0 + ch] = dq[a];
      args.dk_part[(token * HV + hv) * K + d0 + ch] = k_row + col[a];
    }
  }
  __syncthreads();  // dG and the shares before the suffix sum
  if (tid < kSimtTile) {
    float sum = 0.0F;
    for (int w = 0; w < 8; ++w)
      sum += s.part[w][ch];
    for (int i = kC - 1; i >= 0; --i) {
      sum += s.d_o[i][ch];
      s.d_o[i][ch] = sum;
    }
  }
  __syncthreads();  // suffix sums before the gate
  const GateChannel gc = gate_channel(args.in.gate, hv, live ? d0 + ch : 0, K);
  float dbias = 0.0F;
  float da_log = 0.0F;
#pragma unroll
  for (int a = 0; a < 8; ++a) {
    const int i = ty + 8 * a;
    if (i >= chunk.length || !live) continue;
    const Tensor& g = args.in.g;
    const std::int64_t t = chunk.begin + i;
    const float x = load(g, chunk.row * g.s0 + t * g.s1 + hv * g.s2 + (d0 + ch) * g.s3);
    const float dx = gate_decay_backward(args.in.gate, gc, x, s.d_o[i][ch], &da_log);
    dbias += dx;
    const Tensor& dg = args.dg;
    if (dg.data != nullptr) {
      store(dg, chunk.row * dg.s0 + t * dg.s1 + hv * dg.s2 + (d0 + ch) * dg.s3, dx);
    }
  }
  s.part[ty][ch] = dbias;
  da_log = warp_sum(da_log);
  if (ch == 0) s.extra[ty] = da_log;
  __syncthreads();  // shares before their sums
  if (tid < kSimtTile && live && args.dbias_part != nullptr) {
    float sum = 0.0F;
    for (int w = 0; w < 8; ++w)
      sum += s.part[w][ch];
    args.dbias_part[tile * K + d0 + ch] = sum;
  }
  if (tid == 0 && args.da_log_part != nullptr) {
    float sum = 0.0F;
    for (int w = 0; w < 8; ++w)
      sum += s.extra[w];
    args.da_log_part[tile * args.a_parts + kt] = sum;
  }
}

}  // namespace kda::cuda
