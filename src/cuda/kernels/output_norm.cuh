// The gated RMS norm on the output of recurrent calls, where it is a pass of its own.
#pragma once

#include "cuda/tile/element.cuh"

namespace kda::cuda {

// Gated RMS norm of f32 rows [B,T,HV,V]: one warp per row. A block of recurrent_kernel sees a part
// of V only, so this is a pass of its own there. Grid: ceil(rows / 8) blocks of 256 threads.
__global__ void __launch_bounds__(256)
    output_norm_kernel(const __grid_constant__ RecurrentArgs args, const float* from) {
  const Shape& sh = args.shape;
  const int lane = threadIdx.x % 32;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  if (index >= sh.B * sh.T * sh.HV) return;
  const std::int64_t hv = index % sh.HV;
  const std::int64_t t = index / sh.HV % sh.T;
  const std::int64_t row = index / sh.HV / sh.T;
  const OutNorm& norm = args.norm;
  const std::int64_t gate_at = row * norm.gate.s0 + t * norm.gate.s1 + hv * norm.gate.s2;
  const std::int64_t out_at = row * args.o.s0 + t * args.o.s1 + hv * args.o.s2;
  float x[8];
  float square = 0.0F;
#pragma unroll
  for (int a = 0; a < 8; ++a) {
    const int v = lane + 32 * a;
    x[a] = v < sh.V ? from[index * sh.V + v] : 0.0F;
    square += x[a] * x[a];
  }
  const float rstd = rsqrtf(warp_sum(square) / static_cast<float>(sh.V) + norm.eps);
#pragma unroll
  for (int a = 0; a < 8; ++a) {
    const int v = lane + 32 * a;
    if (v >= sh.V) continue;
    float y = x[a] * rstd * norm.weight[v];
    if (norm.gate.data != nullptr) y *= sigmoid(load(norm.gate, gate_at + v * norm.gate.s3));
    store(args.o, out_at + v * args.o.s3, y);
  }
}

}  // namespace kda::cuda
