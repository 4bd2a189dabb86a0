// Residual sum and RMSNorm. See model/rms_norm.h.
//
// A block takes one row at a time. With r = 1/sqrt(mean(h^2) + eps) and c = mean(dy * gain * h) *
// r:
//   dh = r * (dy * gain - h * r * c);   dgain = sum over rows of dy * h * r
#include <algorithm>

#include "model/cuda/element.cuh"
#include "model/cuda/kernels.h"

namespace kda::model::device {
namespace {

constexpr int kThreads = 128;

template <class T, int N>
__global__ void __launch_bounds__(kThreads) forward_kernel(DeviceRmsNorm a) {
  __shared__ float scratch[kThreads / 32];
  const std::int64_t row = blockIdx.x;
  const float* residual = a.residual + row * a.width;
  const T* delta = a.delta == nullptr ? nullptr : static_cast<const T*>(a.delta) + row * a.width;
  float* sum = delta == nullptr ? nullptr : a.sum + row * a.width;
  float squares = 0;
  for (std::int64_t i = threadIdx.x * N; i < a.width; i += kThreads * N) {
    float h[N];
    load<N>(residual + i, h);
    if (delta != nullptr) {
      float d[N];
      load<N>(delta + i, d);
#pragma unroll
      for (int j = 0; j < N; ++j)
        h[j] += d[j];
      store<N>(sum + i, h);
    }
#pragma unroll
    for (int j = 0; j < N; ++j)
      squares += h[j] * h[j];
  }
  const float mean = block_sum(squares, scratch) / static_cast<float>(a.width);
  const float rstd = rsqrtf(mean + a.eps);
  const float* h_row = delta == nullptr ? residual : sum;  // a thread rereads what it wrote itself
  for (std::int64_t i = threadIdx.x * N; i < a.width; i += kThreads * N) {
    float h[N], gain[N];
    load<N>(h_row + i, h);
    load<N>(a.gain + i, gain);
#pragma unroll
    for (int j = 0; j < N; ++j)
      h[j] *= rstd * gain[j];
    store<N>(static_cast<T*>(a.y) + row * a.width + i, h);
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) backward_kernel(DeviceRmsNorm a) {
  __shared__ float scratch[kThreads / 32];
  extern __shared__ float dgain[];  // [width]; a thread touches its own columns only
  for (std::int64_t i = threadIdx.x * N; i < a.width; i += kThreads * N) {
#pragma unroll
    for (int j = 0; j < N; ++j)
      dgain[i + j] = 0;
  }
  const float inverse_width = 1.0f / static_cast<float>(a.width);
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const float* h_row = a.sum + row * a.width;
    const T* dy_row = static_cast<const T*>(a.dy) + row * a.width;
    float squares = 0;
    float products = 0;
    for (std::int64_t i = threadIdx.x * N; i < a.width; i += kThreads * N) {
      float h[N], dy[N], gain[N];
      load<N>(h_row + i, h);
      load<N>(dy_row + i, dy);
      load<N>(a.gain + i, gain);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        squares += h[j] * h[j];
        products += dy[j] * gain[j] * h[j];
      }
    }
    const float mean = block_sum(squares, scratch) * inverse_width;
    const float rstd = rsqrtf(mean + a.eps);
    const float c = block_sum(products, scratch) * inverse_width * rstd;
    for (std::int64_t i = threadIdx.x * N; i < a.width; i += kThreads * N) {
      float h[N], dy[N], gain[N], dh[N];
      load<N>(h_row + i, h);
      load<N>(dy_row + i, dy);
      load<N>(a.gain + i, gain);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float normed = h[j] * rstd;
        dh[j] = rstd * (dy[j] * gain[j] - normed * c);
        dgain[i + j] += dy[j] * normed;
      }
      if (a.dsum != nullptr) {
        float dsum[N];
        load<N>(a.dsum + row * a.width + i, dsum);
#pragma unroll
        for (int j = 0; j < N; ++j)
          dh[j] += dsum[j];
      }
      store<N>(a.dresidual + row * a.width + i, dh);
      if (a.ddelta != nullptr) store<N>(static_cast<T*>(a.ddelta) + row * a.width + i, dh);
    }
  }
  for (std::int64_t i = threadIdx.x * N; i < a.width; i += kThreads * N) {
#pragma unroll
    for (int j = 0; j < N; ++j)
      a.partial[blockIdx.x * a.width + i + j] = dgain[i + j];
  }
}

}  // namespace

void rms_norm_forward(const DeviceRmsNorm& a) {
  if (a.rows == 0) return;
  with_storage(a.storage, [&]<class T>(T) {
    const auto grid = static_cast<unsigned>(a.rows);
    if (a.width % 4 == 0) {
      forward_kernel<T, 4><<<grid, kThreads, 0, stream_of(a.stream)>>>(a);
    } else {
      forward_kernel<T, 1><<<grid, kThreads, 0, stream_of(a.stream)>>>(a);
    }
    check_launch("rms_norm");
  });
}

void rms_norm_backward(const DeviceRmsNorm& a) {
  const auto blocks = std::min<std::int64_t>(a.rows, kDevicePartialRows);
  const auto shared = static_cast<std::size_t>(a.width) * sizeof(float);
  constexpr std::size_t kSharedLimit = 47 * 1024;
  if (shared > kSharedLimit) {
    throw Error(ErrorCode::kUnsupported, "rms_norm on CUDA: width expected at most " +
                                             std::to_string(kSharedLimit / sizeof(float)) +
                                             ", got " + std::to_string(a.width));
  }
  with_storage(a.storage, [&]<class T>(T) {
    const auto grid = static_cast<unsigned>(blocks);
    if (blocks > 0 && a.width % 4 == 0) {
      backward_kernel<T, 4><<<grid, kThreads, shared, stream_of(a.stream)>>>(a);
    } else if (blocks > 0) {
      backward_kernel<T, 1><<<grid, kThreads, shared, stream_of(a.stream)>>>(a);
    }
    check_launch("rms_norm backward");
  });
  sum_rows(a.partial, blocks, a.width, a.dgain, stream_of(a.stream));
}

}  // namespace kda::model::device
