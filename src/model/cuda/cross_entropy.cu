// Softmax cross entropy over rows of f32 logits: loss = log(sum exp(logits)) - logits[target];
// dlogits = softmax - onehot. See model/cross_entropy.h.
#include "model/cuda/element.cuh"
#include "model/cuda/kernels.h"

namespace kda::model::device {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

// Running maximum and sum of exp(x - maximum).
struct Total {
  float maximum, sum;
};

__device__ inline Total merge(Total a, Total b) {
  const float maximum = fmaxf(a.maximum, b.maximum);
  if (maximum == -INFINITY) return {maximum, 0.0f};  // both empty, or nothing but -infinity
  return {maximum, a.sum * __expf(a.maximum - maximum) + b.sum * __expf(b.maximum - maximum)};
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) rows_kernel(DeviceCrossEntropy a) {
  __shared__ Total totals[kWarps];
  const std::int64_t row = blockIdx.x;
  const float* logits = a.logits + row * a.vocab;
  Total total{-INFINITY, 0.0f};
  for (std::int64_t i = threadIdx.x * N; i < a.vocab; i += kThreads * N) {
    float x[N];
    load<N>(logits + i, x);
    float maximum = x[0];
#pragma unroll
    for (int j = 1; j < N; ++j)
      maximum = fmaxf(maximum, x[j]);
    if (maximum == -INFINITY) continue;  // adds nothing, and -inf - -inf is NaN
    Total piece{maximum, 0.0f};
#pragma unroll
    for (int j = 0; j < N; ++j)
      piece.sum += __expf(x[j] - maximum);
    total = merge(total, piece);
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const Total other{__shfl_xor_sync(0xffffffffu, total.maximum, offset),
                      __shfl_xor_sync(0xffffffffu, total.sum, offset)};
    // The same operand order in both lanes, so that both get the same bits.
    total = (threadIdx.x & static_cast<unsigned>(offset)) == 0 ? merge(total, other)
                                                               : merge(other, total);
  }
  if (threadIdx.x % 32 == 0) totals[threadIdx.x / 32] = total;
  __syncthreads();  // all warps' totals are there
  total = totals[0];
  for (int w = 1; w < kWarps; ++w)
    total = merge(total, totals[w]);
  const std::int64_t target = a.targets[row];
  if (threadIdx.x == 0) a.losses[row] = logf(total.sum) + total.maximum - logits[target];
  if (a.dlogits == nullptr) return;
  const float inverse = 1.0f / total.sum;
  T* out = static_cast<T*>(a.dlogits) + row * a.vocab;
  for (std::int64_t i = threadIdx.x * N; i < a.vocab; i += kThreads * N) {
    float x[N];
    load<N>(logits + i, x);
#pragma unroll
    for (int j = 0; j < N; ++j)
      x[j] = __expf(x[j] - total.maximum) * inverse - (i + j == target ? 1.0f : 0.0f);
    store<N>(out + i, x);
  }
}

}  // namespace

void cross_entropy_rows(const DeviceCrossEntropy& a) {
  if (a.rows == 0) return;
  with_storage(a.storage, [&]<class T>(T) {
    const auto grid = static_cast<unsigned>(a.rows);
    if (a.vocab % 4 == 0) {
      rows_kernel<T, 4><<<grid, kThreads, 0, stream_of(a.stream)>>>(a);
    } else {
      rows_kernel<T, 1><<<grid, kThreads, 0, stream_of(a.stream)>>>(a);
    }
    check_launch("cross_entropy");
  });
}

}  // namespace kda::model::device
