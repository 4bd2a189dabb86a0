// The two scans over chunks in f32 arithmetic; factors from prep_simt.cuh.
//
// Forward, per chunk:  U = A beta (v - kt S),  o = qt S + n U,  S = decay S + kh^T U.
// Reverse, per chunk:  X = A^T (n^T do + kh D),  D = decay D + qt^T do - kt^T (beta X).
// (qt and n carry the scale. S at chunk starts and D at chunk ends are stored.)
// Grid: N * HV * ceil(V / 32) blocks of 256 threads; a block owns 32 columns of one state.
#pragma once

#include "cuda/kernels/prep_simt.cuh"

namespace kda::cuda {

inline constexpr int kScanCols = 32;

struct SimtScanSmem {
  float state[256][kScanCols + 1];
  float v[kC][kScanCols + 1];  // v or do
  float z[kC][kScanCols + 1];
  float u[kC][kScanCols + 1];
  float m[kC][kScanCols + 1];  // tile of the left operand
  float beta[kC];
};

// 64 x 32 tile of a row-major f32 matrix; columns past `cols` read as 0.
__device__ inline void load_matrix_tile(const float* from, int ld, int col0, int cols,
                                        float (*to)[kScanCols + 1]) {
  for (int e = threadIdx.x; e < kC * 32; e += kSimtThreads) {
    const int i = e / 32;
    const int j = col0 + e % 32;
    to[i][e % 32] = j < cols ? from[static_cast<std::int64_t>(i) * ld + j] : 0.0F;
  }
}

// v-like rows [64,32] of a [B,T,HV,V] tensor, 0 past the end of the chunk.
__device__ inline void load_value_tile(const Tensor& v, const Chunk& chunk, int hv, int v0, int V,
                                       float (*to)[kScanCols + 1]) {
  for (int e = threadIdx.x; e < kC * kScanCols; e += kSimtThreads) {
    const int i = e / kScanCols;
    const int j = v0 + e % kScanCols;
    const bool in = i < chunk.length && j < V && v.data != nullptr;
    to[i][e % kScanCols] =
        in ? load(v, chunk.row * v.s0 + (chunk.begin + i) * v.s1 + hv * v.s2 + j * v.s3) : 0.0F;
  }
}

__device__ inline void load_state(const Tensor& from, std::int64_t n, int hv, int v0, int K, int V,
                                  float (*state)[kScanCols + 1]) {
  for (int e = threadIdx.x; e < K * kScanCols; e += kSimtThreads) {
    const int d = e / kScanCols;
    const int j = v0 + e % kScanCols;
    const bool in = from.data != nullptr && j < V;
    state[d][e % kScanCols] =
        in ? load(from, n * from.s0 + hv * from.s1 + d * from.s2 + j * from.s3) : 0.0F;
  }
}

__device__ inline void store_state(const Tensor& to, std::int64_t n, int hv, int v0, int K, int V,
                                   const float (*state)[kScanCols + 1]) {
  for (int e = threadIdx.x; e < K * kScanCols; e += kSimtThreads) {
    const int d = e / kScanCols;
    const int j = v0 + e % kScanCols;
    if (j < V) store(to, n * to.s0 + hv * to.s1 + d * to.s2 + j * to.s3, state[d][e % kScanCols]);
  }
}

// acc[a] += sum_m left[ty + 8 a][m] right[m0 + m][tx] over one 32-wide step.
__device__ inline void step_rows(const float (*left)[kScanCols + 1],
                                 const float (*right)[kScanCols + 1], int m0, float acc[8]) {
  const int tx = threadIdx.x % 32;
  const int ty = threadIdx.x / 32;
  for (int m = 0; m < 32; ++m) {
    const float r = right[m0 + m][tx];
#pragma unroll
    for (int a = 0; a < 8; ++a)
      acc[a] += left[ty + 8 * a][m] * r;
  }
}

// state[d0 + ty + 8 a][tx] += sign * sum_i left[i][ty + 8 a] right[i][tx]
__device__ inline void update_state(const float (*left)[kScanCols + 1],
                                    const float (*right)[kScanCols + 1], int d0, float sign,
                                    float (*state)[kScanCols + 1]) {
  const int tx = threadIdx.x % 32;
  const int ty = threadIdx.x / 32;
  float acc[4] = {};
  for (int i = 0; i < kC; ++i) {
    const float r = right[i][tx];
#pragma unroll
    for (int a = 0; a < 4; ++a)
      acc[a] += left[i][ty + 8 * a] * r;
  }
#pragma unroll
  for (int a = 0; a < 4; ++a) {
    if (d0 + ty + 8 * a < 256) state[d0 + ty + 8 * a][tx] += sign * acc[a];
  }
}

template <bool kOutput>
__global__ void __launch_bounds__(kSimtThreads, 3)
    scan_fwd_simt_kernel(const __grid_constant__ ChunkArgs args) {
  extern __shared__ char raw_smem[];
  SimtScanSmem& s = *reinterpret_cast<SimtScanSmem*>(raw_smem);
  const int HV = args.shape.HV;
  const int K = args.shape.K;
  const int V = args.shape.V;
  const int slices = (V + kScanCols - 1) / kScanCols;
  const int v0 = static_cast<int>(blockIdx.x % slices) * kScanCols;
  const int hv = static_cast<int>(blockIdx.x / slices % HV);
  const std::int64_t n = blockIdx.x / slices / HV;
  const SequenceSpan seq = sequence_at(args.map, n);
  const int tx = threadIdx.x % 32;
  const int ty = threadIdx.x / 32;

  for (int e = threadIdx.x; e < 256 * (kScanCols + 1); e += kSimtThreads)
    s.state[0][e] = 0.0F;
  __syncthreads();  // zero rows past K before the state is loaded
  load_state(args.in.initial_state, n, hv, v0, K, V, s.state);
  __syncthreads();  // state before its readers
  const std::int64_t num_chunks = (seq.length + kC - 1) / kC;
  for (std::int64_t local = 0; local < num_chunks; ++local) {
    const std::int64_t c = seq.first_chunk + local;
    const std::int64_t tile = c * HV + hv;
    const std::int64_t left = seq.length - local * kC;
    const Chunk chunk{seq.row, seq.begin + local * kC, static_cast<int>(left < kC ? left : kC)};
    if (args.h.data != nullptr) store_state(args.h, c, hv, v0, K, V, s.state);
    load_value_tile(args.in.v, chunk, hv, v0, V, s.v);
    if (threadIdx.x < kC) s.beta[threadIdx.x] = args.factors.beta[tile * kC + threadIdx.x];
    const float* kt = static_cast<const float*>(args.factors.kt) + tile * kC * K;
    const float* kh = static_cast<const float*>(args.factors.kh) + tile * kC * K;
    const float* qt = static_cast<const float*>(args.factors.qt) + tile * kC * K;
    const float* nm = static_cast<const float*>(args.factors.n) + tile * kC * kC;
    const float* am = static_cast<const float*>(args.factors.a) + tile * kC * kC;
    float acc_z[8] = {};
    float acc_o[8] = {};
    for (int d0 = 0; d0 < K; d0 += 32) {
      load_matrix_tile(kt, K, d0, K, s.m);
      __syncthreads();  // tile before the products
      step_rows(s.m, s.state, d0, acc_z);
      __syncthreads();  // products before the next tile
      if constexpr (kOutput) {
        load_matrix_tile(qt, K, d0, K, s.m);
        __syncthreads();  // as above
        step_rows(s.m, s.state, d0, acc_o);
        __syncthreads();
      }
    }
#pragma unroll
    for (int a = 0; a < 8; ++a) {
      const int i = ty + 8 * a;
      s.z[i][tx] = s.beta[i] * (s.v[i][tx] - acc_z[a]);
      acc_z[a] = 0.0F;
    }
    for (int m0 = 0; m0 < kC; m0 += 32) {
      load_matrix_tile(am, kC, m0, kC, s.m);
      __syncthreads();  // z and the tile before the products
      step_rows(s.m, s.z, m0, acc_z);
      __syncthreads();  // products before the next tile
    }
#pragma unroll
    for (int a = 0; a < 8; ++a)
      s.u[ty + 8 * a][tx] = acc_z[a];
    if constexpr (kOutput) {
      for (int m0 = 0; m0 < kC; m0 += 32) {
        load_matrix_tile(nm, kC, m0, kC, s.m);
        __syncthreads();  // u and the tile before the products
        step_rows(s.m, s.u, m0, acc_o);
        __syncthreads();  // products before the next tile
      }
#pragma unroll
      for (int a = 0; a < 8; ++a) {
        const int i = ty + 8 * a;
        if (i >= chunk.length || v0 + tx >= V) continue;
        const Tensor& o = args.o;
        store(o, chunk.row * o.s0 + (chunk.begin + i) * o.s1 + hv * o.s2 + (v0 + tx) * o.s3,
              acc_o[a]);
      }
    }
    for (int e = threadIdx.x; e < K * kScanCols; e += kSimtThreads) {
      s.state[e / kScanCols][e % kScanCols] *= args.factors.decay[tile * K + e / kScanCols];
    }
    for (int d0 = 0; d0 < K; d0 += 32) {
      load_matrix_tile(kh, K, d0, K, s.m);
      __syncthreads();  // tile, u and the scaled state before the update
      update_state(s.m, s.u, d0, 1.0F, s.state);
      __syncthreads();  // update before the next tile
    }
  }
  if (args.final_state.data != nullptr) store_state(args.final_state, n, hv, v0, K, V, s.state);
}

__global__ void __launch_bounds__(kSimtThreads)
    scan_rev_simt_kernel(const __grid_constant__ ChunkArgs args) {
  extern __shared__ char raw_smem[];
  SimtScanSmem& s = *reinterpret_cast<SimtScanSmem*>(raw_smem);
  const int HV = args.shape.HV;
  const int K = args.shape.K;
  const int V = args.shape.V;
  const int slices = (V + kScanCols - 1) / kScanCols;
  const int v0 = static_cast<int>(blockIdx.x % slices) * kScanCols;
  const int hv = static_cast<int>(blockIdx.x / slices % HV);
  const std::int64_t n = blockIdx.x / slices / HV;
  const SequenceSpan seq = sequence_at(args.map, n);
  const int tx = threadIdx.x % 32;
  const int ty = threadIdx.x / 32;

  for (int e = threadIdx.x; e < 256 * (kScanCols + 1); e += kSimtThreads)
    s.state[0][e] = 0.0F;
  __syncthreads();  // zero rows past K before the state is loaded
  load_state(args.d_final_state, n, hv, v0, K, V, s.state);
  __syncthreads();  // state before its readers
  const std::int64_t num_chunks = (seq.length + kC - 1) / kC;
  for (std::int64_t local = num_chunks - 1; local >= 0; --local) {
    const std::int64_t c = seq.first_chunk + local;
    const std::int64_t tile = c * HV + hv;
    const std::int64_t left = seq.length - local * kC;
    const Chunk chunk{seq.row, seq.begin + local * kC, static_cast<int>(left < kC ? left : kC)};
    store_state(args.d_states, c, hv, v0, K, V, s.state);
    load_value_tile(args.d_o, chunk, hv, v0, V, s.v);
    if (threadIdx.x < kC) s.beta[threadIdx.x] = args.factors.beta[tile * kC + threadIdx.x];
    const float* kt = static_cast<const float*>(args.factors.kt) + tile * kC * K;
    const float* kh = static_cast<const float*>(args.factors.kh) + tile * kC * K;
    const float* qt = static_cast<const float*>(args.factors.qt) + tile * kC * K;
    const float* nm = static_cast<const float*>(args.factors.n) + tile * kC * kC;
    const float* am = static_cast<const float*>(args.factors.a) + tile * kC * kC;
    float acc_e[8] = {};
    for (int d0 = 0; d0 < K; d0 += 32) {
      load_matrix_tile(kh, K, d0, K, s.m);
      __syncthreads();  // tile before the products
      step_rows(s.m, s.state, d0, acc_e);
      __syncthreads();  // products before the next tile
    }
#pragma unroll
    for (int a = 0; a < 8; ++a) {
      const int i = ty + 8 * a;
      for (int m = i; m < kC; ++m)
        acc_e[a] += nm[m * kC + i] * s.v[m][tx];
      s.z[i][tx] = acc_e[a];
    }
    __syncthreads();  // dU before A^T dU
#pragma unroll
    for (int a = 0; a < 8; ++a) {
      const int i = ty + 8 * a;
      float x = 0.0F;
      for (int m = i; m < kC; ++m)
        x += am[m * kC + i] * s.z[m][tx];
      const Tensor& to = args.x;
      if (v0 + tx < V) store(to, c * to.s0 + hv * to.s1 + i * to.s2 + v0 + tx, x);
      s.u[i][tx] = s.beta[i] * x;
    }
    for (int e = threadIdx.x; e < K * kScanCols; e += kSimtThreads) {
      s.state[e / kScanCols][e % kScanCols] *= args.factors.decay[tile * K + e / kScanCols];
    }
    for (int d0 = 0; d0 < K; d0 += 32) {
      load_matrix_tile(qt, K, d0, K, s.m);
      __syncthreads();  // tile, beta X and the scaled state before the update
      update_state(s.m, s.v, d0, 1.0F, s.state);
      __syncthreads();  // update before the next tile
      load_matrix_tile(kt, K, d0, K, s.m);
      __syncthreads();  // as above
      update_state(s.m, s.u, d0, -1.0F, s.state);
      __syncthreads();
    }
  }
  if (args.d_initial_state.data != nullptr) {
    store_state(args.d_initial_state, n, hv, v0, K, V, s.state);
  }
}

}  // namespace kda::cuda
