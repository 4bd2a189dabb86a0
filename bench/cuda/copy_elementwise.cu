#include "copy_elementwise.h"

namespace {

__global__ void __launch_bounds__(256)
    copy_kernel(const float4* from, float4* to, std::size_t count) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * 256;
  std::size_t i = static_cast<std::size_t>(blockIdx.x) * 256 + threadIdx.x;
  for (; i + 3 * step < count; i += 4 * step) {
    float4 x[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      x[j] = __ldcs(from + i + static_cast<std::size_t>(j) * step);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      x[j].w = -x[j].w;
      __stcs(to + i + static_cast<std::size_t>(j) * step, x[j]);
    }
  }
  for (; i < count; i += step) {
    float4 x = __ldcs(from + i);
    x.w = -x.w;
    __stcs(to + i, x);
  }
}

}  // namespace

void copy_elementwise(const void* from, void* to, std::size_t bytes, cudaStream_t stream) {
  copy_kernel<<<132 * 8, 256, 0, stream>>>(static_cast<const float4*>(from),
                                           static_cast<float4*>(to), bytes / 16);
}
