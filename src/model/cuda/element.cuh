// Element access and reductions shared by the layer kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "kda/error.h"
#include "kda/types.h"

namespace kda::model::device {

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class T>
__device__ inline T narrow(float value);
template <>
__device__ inline float narrow<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// N neighbours in one access; the address must be a multiple of their size.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T value[N];
};

template <int N, class T>
__device__ inline void load(const T* from, float (&to)[N]) {
  const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(from);
#pragma unroll
  for (int i = 0; i < N; ++i)
    to[i] = widen(pack.value[i]);
}

template <int N, class T>
__device__ inline void store(T* to, const float (&from)[N]) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i)
    pack.value[i] = narrow<T>(from[i]);
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// Sum over the block, the same bits in every thread. `scratch` has one float per warp.
__device__ inline float block_sum(float value, float* scratch) {
  value = warp_sum(value);
  const int warps = static_cast<int>(blockDim.x) / 32;
  __syncthreads();  // an earlier use of scratch is over
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();  // all warps' sums are there
  float total = 0;
  for (int w = 0; w < warps; ++w)
    total += scratch[w];
  return total;
}

inline void check_launch(const char* what) {
  const cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) return;
  throw Error(ErrorCode::kCuda, std::string(what) + ": " + cudaGetErrorName(status) + " (" +
                                    cudaGetErrorString(status) + ")");
}

inline cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

// Calls f(T{}) for the storage type.
template <class F>
void with_storage(DType storage, F&& f) {
  switch (storage) {
    case DType::kF32:
      return f(float{});
    case DType::kBF16:
      return f(__nv_bfloat16{});
    default:
      throw Error(ErrorCode::kUnsupported,
                  std::string("layer kernels for CUDA: expected f32 or bf16 activations, got ") +
                      name_of(storage));
  }
}

// Whether rows can be read N elements at a time: first element and distance of rows.
template <class T>
bool aligned(int n, const T* data, std::int64_t stride, std::int64_t element_bytes) {
  const std::int64_t bytes = n * element_bytes;
  return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) == 0 &&
         stride * element_bytes % bytes == 0;
}

// out[i] = sum over r of partial[r,i], in the order of r within each of eight interleaved groups.
void sum_rows(const float* partial, std::int64_t rows, std::int64_t size, float* out,
              cudaStream_t stream);

}  // namespace kda::model::device
