// What remains after the chunk-local stage: dv and dbeta, the fold of dq and dk over the G value
// heads of a query/key head with the backward of the L2 norm, and the sums of parameter gradients.
// Every sum has a fixed order: results do not depend on how blocks are scheduled.
#pragma once

#include "cuda/tile/chunk.cuh"
#include "cuda/tile/element.cuh"

namespace kda::cuda {

// dv = beta X,  dbeta = X.v + sum of parts (then the sigmoid's backward). One warp per chunk row.
// Grid: num_chunks * HV blocks of 256 threads.
__global__ void __launch_bounds__(256) value_bwd_kernel(const __grid_constant__ ChunkArgs args) {
  const int HV = args.shape.HV;
  const int V = args.shape.V;
  const int hv = static_cast<int>(blockIdx.x % HV);
  const std::int64_t c = blockIdx.x / HV;
  const Chunk chunk = chunk_at(args.map, c);
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x / 32; i < chunk.length; i += 8) {
    const std::int64_t t = chunk.begin + i;
    const Tensor& b = args.in.beta;
    const std::int64_t b_at = chunk.row * b.s0 + t * b.s1 + hv * b.s2;
    const float beta = beta_of(args.in, b_at);
    const Tensor& v = args.in.v;
    const Tensor& x = args.x;
    float sum = 0.0F;
    for (int j = lane; j < V; j += 32) {
      const float xv = load(x, c * x.s0 + hv * x.s1 + i * x.s2 + j);
      sum += xv * load(v, chunk.row * v.s0 + t * v.s1 + hv * v.s2 + j * v.s3);
      if (args.dv.data != nullptr) {
        store(args.dv, chunk.row * args.dv.s0 + t * args.dv.s1 + hv * args.dv.s2 + j * args.dv.s3,
              beta * xv);
      }
    }
    sum = warp_sum(sum);
    if (lane != 0 || args.dbeta.data == nullptr) continue;
    const std::int64_t token = chunk.row * args.shape.T + t;
    for (int part = 0; part < args.beta_parts; ++part) {
      sum += args.dbeta_part[(part * args.shape.B * args.shape.T + token) * HV + hv];
    }
    if (args.in.beta_is_logit) sum *= beta * (1.0F - beta / args.in.beta_max);
    store(args.dbeta, chunk.row * args.dbeta.s0 + t * args.dbeta.s1 + hv * args.dbeta.s2, sum);
  }
}

// One warp per (token, query/key head): dx = sum over G, then rstd (dy - (dy.y) y).
__device__ inline void fold_row(const ChunkArgs& args, std::int64_t warp) {
  const Shape& sh = args.shape;
  const int lane = threadIdx.x % 32;
  if (warp >= sh.B * sh.T * sh.H) return;
  const int h = static_cast<int>(warp % sh.H);
  const std::int64_t token = warp / sh.H;
  const std::int64_t row = token / sh.T;
  const std::int64_t t = token - row * sh.T;
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const Tensor& x = which == 0 ? args.in.q : args.in.k;
    const Tensor& dx = which == 0 ? args.dq : args.dk;
    const float* part = which == 0 ? args.dq_part : args.dk_part;
    if (dx.data == nullptr) continue;
    float dy[8];
    float xs[8];
    float square = 0.0F;
    const std::int64_t x_at = row * x.s0 + t * x.s1 + h * x.s2;
#pragma unroll
    for (int a = 0; a < 8; ++a) {
      const int d = lane + 32 * a;
      dy[a] = 0.0F;
      xs[a] = 0.0F;
      if (d >= sh.K) continue;
      for (int g = 0; g < sh.G; ++g) {
        dy[a] += part[(token * sh.HV + static_cast<std::int64_t>(h) * sh.G + g) * sh.K + d];
      }
      xs[a] = load(x, x_at + d * x.s3);
      square += xs[a] * xs[a];
    }
    float rstd = 1.0F;
    float dot = 0.0F;
    if (args.in.l2norm) {
      rstd = 1.0F / sqrtf(warp_sum(square) + kNormEps);
#pragma unroll
      for (int a = 0; a < 8; ++a) {
        xs[a] = round_to(x.elem, xs[a] * rstd);
        dot += dy[a] * xs[a];
      }
      dot = warp_sum(dot);
    }
#pragma unroll
    for (int a = 0; a < 8; ++a) {
      const int d = lane + 32 * a;
      if (d >= sh.K) continue;
      const float value = args.in.l2norm ? rstd * (dy[a] - dot * xs[a]) : dy[a];
      store(dx, row * dx.s0 + t * dx.s1 + h * dx.s2 + d * dx.s3, value);
    }
  }
}

// out[hv, d] = sum over blocks of part[block, hv, d]; blocks without tokens were never written.
// One block of 1024 threads per `tile` of 32 channels: 32 interleaved partial sums each.
__device__ inline void sum_blocks(const float* part, float* out, std::int64_t num_blocks, int HV,
                                  int K, const std::int32_t* exists, int tile) {
  __shared__ float sums[32][33];
  const int tiles = (K + 31) / 32;
  const int hv = tile / tiles;
  const int d = tile % tiles * 32 + threadIdx.x % 32;
  const int group = threadIdx.x / 32;
  float sum = 0.0F;
  if (d < K) {
    for (std::int64_t b = group; b < num_blocks; b += 32) {
      if (exists != nullptr && exists[b] < 0) continue;
      sum += part[(b * HV + hv) * K + d];
    }
  }
  sums[group][threadIdx.x % 32] = sum;
  __syncthreads();  // partial sums before their sum
  if (group != 0 || d >= K) return;
  sum = 0.0F;
  for (int g = 0; g < 32; ++g)
    sum += sums[g][threadIdx.x];
  out[static_cast<std::int64_t>(hv) * K + d] = sum;
}

// out[hv] = sum over blocks and parts of part[block, hv, parts], by the first 256 threads.
__device__ inline void sum_scalars(const float* part, float* out, std::int64_t num_blocks, int HV,
                                   int parts, const std::int32_t* exists, int hv) {
  __shared__ float sums[8];
  float sum = 0.0F;
  if (threadIdx.x < 256) {
    for (std::int64_t b = threadIdx.x; b < num_blocks; b += 256) {
      if (exists != nullptr && exists[b] < 0) continue;
      for (int p = 0; p < parts; ++p)
        sum += part[(b * HV + hv) * parts + p];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  }
  __syncthreads();  // warp sums before their sum
  if (threadIdx.x != 0) return;
  sum = 0.0F;
  for (int w = 0; w < 8; ++w)
    sum += sums[w];
  out[hv] = sum;
}

// Grid: HV * ceil(K / 32) blocks.
__global__ void __launch_bounds__(1024)
    sum_blocks_kernel(const float* part, float* out, std::int64_t num_blocks, int HV, int K,
                      const std::int32_t* exists) {
  sum_blocks(part, out, num_blocks, HV, K, exists, static_cast<int>(blockIdx.x));
}

// Grid: HV blocks.
__global__ void __launch_bounds__(256)
    sum_scalars_kernel(const float* part, float* out, std::int64_t num_blocks, int HV, int parts,
                       const std::int32_t* exists) {
  sum_scalars(part, out, num_blocks, HV, parts, exists, static_cast<int>(blockIdx.x));
}

// What is left of a backward: d dt_bias, with the first `bias_blocks` blocks; d a_log with the next
// `scalar_blocks`, one per value head; with the others dq and dk of grouped heads, 32 rows each.
__global__ void __launch_bounds__(1024)
    finish_kernel(const __grid_constant__ ChunkArgs args, int bias_blocks, int scalar_blocks) {
  const int block = static_cast<int>(blockIdx.x);
  const std::int64_t chunks = args.map.num_chunks;
  if (block < bias_blocks) {
    sum_blocks(args.dbias_part, args.d_dt_bias, chunks, args.shape.HV, args.shape.K,
               args.map.chunk_seq, block);
  } else if (block < bias_blocks + scalar_blocks) {
    sum_scalars(args.da_log_part, args.da_log, chunks, args.shape.HV, args.a_parts,
                args.map.chunk_seq, block - bias_blocks);
  } else {
    fold_row(args, static_cast<std::int64_t>(block - bias_blocks - scalar_blocks) * 32 +
                       threadIdx.x / 32);
  }
}

}  // namespace kda::cuda
