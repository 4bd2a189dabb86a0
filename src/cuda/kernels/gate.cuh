// The gate, its prefix sum and the L2 norm as operators of their own. Elementwise, any strides.
#pragma once

#include "cuda/tile/element.cuh"

namespace kda::cuda {

struct GateArgs {
  Shape shape;
  Gate gate;
  Tensor g;                               // [B,T,HV,K]
  Tensor out;                             // g_ln, gcum_log2 or dg_raw
  Tensor dg_ln;                           // backward
  float* dbias_part = nullptr;            // [blocks,HV,K]
  float* da_log_part = nullptr;           // [blocks,HV]
  const std::int64_t* offsets = nullptr;  // device, packed prefix sums only
  int offsets_are_i32 = 0;
  std::int64_t offsets_stride = 1;
  std::int64_t first_sequence = 0;
  int chunk = 64;
};

__global__ void __launch_bounds__(256) gate_forward_kernel(const __grid_constant__ GateArgs args) {
  const Shape& s = args.shape;
  const std::int64_t total = s.B * s.T * s.HV * s.K;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * 256;
  for (std::int64_t e = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x; e < total;
       e += step) {
    const int d = static_cast<int>(e % s.K);
    const int hv = static_cast<int>(e / s.K % s.HV);
    const std::int64_t token = e / s.K / s.HV;
    const std::int64_t row = token / s.T;
    const std::int64_t t = token - row * s.T;
    const float x = load(args.g, row * args.g.s0 + t * args.g.s1 + hv * args.g.s2 + d * args.g.s3);
    store(args.out, row * args.out.s0 + t * args.out.s1 + hv * args.out.s2 + d * args.out.s3,
          gate_decay(args.gate, gate_channel(args.gate, hv, d, s.K), x));
  }
}

// Tokens [begin, begin + 128) of the flattened batch, one value head; thread = channel.
// Grid: blocks * HV, 256 threads.
__global__ void __launch_bounds__(256)
    gate_backward_kernel(const __grid_constant__ GateArgs args, int block_tokens) {
  __shared__ float sums[8];
  const Shape& s = args.shape;
  const int hv = static_cast<int>(blockIdx.x % s.HV);
  const std::int64_t block = blockIdx.x / s.HV;
  const int d = threadIdx.x;
  float dbias = 0.0F;
  float da_log = 0.0F;
  if (d < s.K) {
    const GateChannel gc = gate_channel(args.gate, hv, d, s.K);
    for (int i = 0; i < block_tokens; ++i) {
      const std::int64_t token = block * block_tokens + i;
      if (token >= s.B * s.T) break;
      const std::int64_t row = token / s.T;
      const std::int64_t t = token - row * s.T;
      const Tensor& dg = args.dg_ln;
      const float x =
          load(args.g, row * args.g.s0 + t * args.g.s1 + hv * args.g.s2 + d * args.g.s3);
      const float da = load(dg, row * dg.s0 + t * dg.s1 + hv * dg.s2 + d * dg.s3);
      const float dx = gate_decay_backward(args.gate, gc, x, da, &da_log);
      dbias += dx;
      if (args.out.data != nullptr) {
        store(args.out, row * args.out.s0 + t * args.out.s1 + hv * args.out.s2 + d * args.out.s3,
              dx);
      }
    }
    if (args.dbias_part != nullptr) args.dbias_part[(block * s.HV + hv) * s.K + d] = dbias;
  }
  da_log = warp_sum(da_log);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = da_log;
  __syncthreads();  // warp sums before their sum
  if (threadIdx.x != 0 || args.da_log_part == nullptr) return;
  float sum = 0.0F;
  for (int w = 0; w < 8; ++w)
    sum += sums[w];
  args.da_log_part[block * s.HV + hv] = sum;
}

// Up to 128 sequence boundaries by value, for cu_seqlens in host memory.
struct OffsetBatch {
  std::int64_t offset[129];
};

// Inclusive prefix sum times log2(e), restarting at every chunk of every sequence; thread =
// channel. Grid: (sequences * HV, chunk groups); a block strides over the chunks of its sequence.
__global__ void __launch_bounds__(256)
    gate_cumsum_kernel(const __grid_constant__ GateArgs args,
                       const __grid_constant__ OffsetBatch host_offsets, int packed_on_host) {
  const Shape& s = args.shape;
  const int hv = static_cast<int>(blockIdx.x % s.HV);
  const std::int64_t n = blockIdx.x / s.HV;
  const int d = threadIdx.x;
  if (d >= s.K) return;
  std::int64_t row = n;
  std::int64_t begin = 0;
  std::int64_t end = s.T;
  if (packed_on_host != 0) {
    row = 0;
    begin = host_offsets.offset[n];
    end = host_offsets.offset[n + 1];
  } else if (args.offsets != nullptr) {
    row = 0;
    const std::int64_t stride = args.offsets_stride;
    if (args.offsets_are_i32 != 0) {
      const auto* offsets = reinterpret_cast<const std::int32_t*>(args.offsets);
      begin = offsets[n * stride];
      end = offsets[(n + 1) * stride];
    } else {
      begin = args.offsets[n * stride];
      end = args.offsets[(n + 1) * stride];
    }
    begin = begin < 0 ? 0 : begin;
    end = end > s.T ? s.T : end;
  }
  const GateChannel gc = gate_channel(args.gate, hv, d, s.K);
  for (std::int64_t first = begin + static_cast<std::int64_t>(blockIdx.y) * args.chunk; first < end;
       first += static_cast<std::int64_t>(gridDim.y) * args.chunk) {
    float sum = 0.0F;
    for (std::int64_t t = first; t < first + args.chunk && t < end; ++t) {
      const float x =
          load(args.g, row * args.g.s0 + t * args.g.s1 + hv * args.g.s2 + d * args.g.s3);
      sum += gate_decay(args.gate, gc, x) * kLog2E;
      store(args.out, row * args.out.s0 + t * args.out.s1 + hv * args.out.s2 + d * args.out.s3,
            sum);
    }
  }
}

struct NormArgs {
  std::int64_t B = 0, T = 0, H = 0, K = 0;
  float eps = 0.0F;
  Tensor x, y, rstd, dy, dx;
};

// One warp per row.
__global__ void __launch_bounds__(256)
    l2norm_kernel(const __grid_constant__ NormArgs args, bool backward) {
  const int lane = threadIdx.x % 32;
  const std::int64_t row_index = static_cast<std::int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  if (row_index >= args.B * args.T * args.H) return;
  const std::int64_t h = row_index % args.H;
  const std::int64_t t = row_index / args.H % args.T;
  const std::int64_t b = row_index / args.H / args.T;
  const std::int64_t x_at = b * args.x.s0 + t * args.x.s1 + h * args.x.s2;
  float square = 0.0F;
  for (std::int64_t d = lane; d < args.K; d += 32) {
    const float x = load(args.x, x_at + d * args.x.s3);
    square += x * x;
  }
  const float rstd = 1.0F / sqrtf(warp_sum(square) + args.eps);
  if (!backward) {
    const std::int64_t y_at = b * args.y.s0 + t * args.y.s1 + h * args.y.s2;
    for (std::int64_t d = lane; d < args.K; d += 32) {
      store(args.y, y_at + d * args.y.s3, load(args.x, x_at + d * args.x.s3) * rstd);
    }
    if (lane == 0 && args.rstd.data != nullptr) {
      store(args.rstd, b * args.rstd.s0 + t * args.rstd.s1 + h * args.rstd.s2, rstd);
    }
    return;
  }
  const std::int64_t dy_at = b * args.dy.s0 + t * args.dy.s1 + h * args.dy.s2;
  const std::int64_t dx_at = b * args.dx.s0 + t * args.dx.s1 + h * args.dx.s2;
  float dot = 0.0F;
  for (std::int64_t d = lane; d < args.K; d += 32) {
    const float y = round_to(args.x.elem, load(args.x, x_at + d * args.x.s3) * rstd);
    dot += y * load(args.dy, dy_at + d * args.dy.s3);
  }
  dot = warp_sum(dot);
  for (std::int64_t d = lane; d < args.K; d += 32) {
    const float y = round_to(args.x.elem, load(args.x, x_at + d * args.x.s3) * rstd);
    store(args.dx, dx_at + d * args.dx.s3,
          rstd * (load(args.dy, dy_at + d * args.dy.s3) - dot * y));
  }
}

}  // namespace kda::cuda
