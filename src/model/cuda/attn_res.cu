// Attention over depth. See model/attn_res.h for the mathematics.
//
// A block takes one token at a time and reads its sources twice: for the reductions over channels,
// then for the sums over sources; the second time they are in a cache.
#include <algorithm>

#include "model/cuda/element.cuh"
#include "model/cuda/kernels.h"

namespace kda::model::device {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

template <class T>
__device__ const T* source_row(const DeviceAttnRes& a, int i, std::int64_t token) {
  return static_cast<const T*>(a.sources[i]) + token * a.width;
}

// softmax over the block's logits, the same bits in every thread.
__device__ inline void softmax_of(const float* logits, int count, float* largest, float* inverse) {
  float maximum = logits[0];
  for (int i = 1; i < count; ++i)
    maximum = fmaxf(maximum, logits[i]);
  float total = 0;
  for (int i = 0; i < count; ++i)
    total += __expf(logits[i] - maximum);
  *largest = maximum;
  *inverse = 1.0f / total;
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) forward_kernel(DeviceAttnRes a) {
  __shared__ float sums[kWarps][kDeviceMaxSources][2];
  __shared__ float logits[kDeviceMaxSources];
  const std::int64_t token = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = 0; i < a.count; ++i) {
    const T* row = source_row<T>(a, i, token);
    float squares = 0;
    float dot = 0;
    for (std::int64_t c = thread * N; c < a.width; c += kThreads * N) {
      float v[N], gain[N], query[N];
      load<N>(row + c, v);
      load<N>(a.gain + c, gain);
      load<N>(a.query + c, query);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        squares += v[j] * v[j];
        dot += v[j] * gain[j] * query[j];
      }
    }
    squares = warp_sum(squares);
    dot = warp_sum(dot);
    if (thread % 32 == 0) {
      sums[thread / 32][i][0] = squares;
      sums[thread / 32][i][1] = dot;
    }
  }
  __syncthreads();  // the warps' sums are there
  for (int i = thread; i < a.count; i += kThreads) {
    float squares = 0;
    float dot = 0;
    for (int w = 0; w < kWarps; ++w) {
      squares += sums[w][i][0];
      dot += sums[w][i][1];
    }
    const float scale = rsqrtf(squares / static_cast<float>(a.width) + a.eps);
    logits[i] = dot * scale;
    a.logits[token * a.count + i] = dot * scale;
    a.scales[token * a.count + i] = scale;
  }
  __syncthreads();  // the logits are there
  float largest, inverse;
  softmax_of(logits, a.count, &largest, &inverse);
  for (std::int64_t c = thread * N; c < a.width; c += kThreads * N) {
    float h[N] = {};
    for (int i = 0; i < a.count; ++i) {
      float v[N];
      load<N>(source_row<T>(a, i, token) + c, v);
      const float p = __expf(logits[i] - largest) * inverse;
#pragma unroll
      for (int j = 0; j < N; ++j)
        h[j] += p * v[j];
    }
    store<N>(a.h + token * a.width + c, h);
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) backward_kernel(DeviceAttnRes a) {
  __shared__ float sums[kWarps][kDeviceMaxSources];
  __shared__ float weight[kDeviceMaxSources];  // p_i
  __shared__ float pull[kDeviceMaxSources];    // ds_i rstd_i
  __shared__ float back[kDeviceMaxSources];    // what remains of it along the source
  __shared__ float dots[kDeviceMaxSources];
  extern __shared__ float pulled[];  // [width]; a thread touches its own columns only
  const int thread = static_cast<int>(threadIdx.x);
  for (std::int64_t c = thread * N; c < a.width; c += kThreads * N) {
#pragma unroll
    for (int j = 0; j < N; ++j)
      pulled[c + j] = 0;
  }
  for (std::int64_t token = blockIdx.x; token < a.rows; token += gridDim.x) {
    const float* dh_row = a.dh + token * a.width;
    for (int i = 0; i < a.count; ++i) {
      const T* row = source_row<T>(a, i, token);
      float dot = 0;
      for (std::int64_t c = thread * N; c < a.width; c += kThreads * N) {
        float v[N], dh[N];
        load<N>(row + c, v);
        load<N>(dh_row + c, dh);
#pragma unroll
        for (int j = 0; j < N; ++j)
          dot += v[j] * dh[j];
      }
      dot = warp_sum(dot);
      if (thread % 32 == 0) sums[thread / 32][i] = dot;
    }
    __syncthreads();  // the warps' sums are there
    const float* logits = a.logits + token * a.count;
    float largest, inverse;
    softmax_of(logits, a.count, &largest, &inverse);
    for (int i = thread; i < a.count; i += kThreads) {
      float dot = 0;
      for (int w = 0; w < kWarps; ++w)
        dot += sums[w][i];
      dots[i] = dot;
      weight[i] = __expf(logits[i] - largest) * inverse;
    }
    __syncthreads();  // all dots and weights are there
    float mean = 0;
    for (int i = 0; i < a.count; ++i)
      mean += weight[i] * dots[i];
    for (int i = thread; i < a.count; i += kThreads) {
      const float scale = a.scales[token * a.count + i];
      pull[i] = weight[i] * (dots[i] - mean) * scale;
      back[i] = pull[i] * logits[i] * scale / static_cast<float>(a.width);
    }
    __syncthreads();  // pull and back are there
    for (std::int64_t c = thread * N; c < a.width; c += kThreads * N) {
      float dh[N], gain[N], query[N], sum[N] = {};
      load<N>(dh_row + c, dh);
      load<N>(a.gain + c, gain);
      load<N>(a.query + c, query);
      for (int i = 0; i < a.count; ++i) {
        float v[N], dv[N];
        load<N>(source_row<T>(a, i, token) + c, v);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          dv[j] = weight[i] * dh[j] + pull[i] * gain[j] * query[j] - back[i] * v[j];
          sum[j] += pull[i] * v[j];
        }
        store<N>(static_cast<T*>(a.dsources[i]) + token * a.width + c, dv);
      }
#pragma unroll
      for (int j = 0; j < N; ++j)
        pulled[c + j] += sum[j];
    }
    __syncthreads();  // the next token overwrites the shared arrays
  }
  for (std::int64_t c = thread * N; c < a.width; c += kThreads * N) {
#pragma unroll
    for (int j = 0; j < N; ++j)
      a.partial[blockIdx.x * a.width + c + j] = pulled[c + j];
  }
}

void check_count(const DeviceAttnRes& a) {
  if (a.count <= kDeviceMaxSources) return;
  throw Error(ErrorCode::kUnsupported, "attn_res on CUDA: at most " +
                                           std::to_string(kDeviceMaxSources) + " sources, got " +
                                           std::to_string(a.count));
}

}  // namespace

void attn_res_forward(const DeviceAttnRes& a) {
  check_count(a);
  if (a.rows == 0) return;
  with_storage(a.storage, [&]<class T>(T) {
    const auto grid = static_cast<unsigned>(a.rows);
    if (a.width % 4 == 0) {
      forward_kernel<T, 4><<<grid, kThreads, 0, stream_of(a.stream)>>>(a);
    } else {
      forward_kernel<T, 1><<<grid, kThreads, 0, stream_of(a.stream)>>>(a);
    }
    check_launch("attn_res");
  });
}

void attn_res_backward(const DeviceAttnRes& a) {
  check_count(a);
  const auto blocks = std::min<std::int64_t>(a.rows, kDevicePartialRows);
  const auto shared = static_cast<std::size_t>(a.width) * sizeof(float);
  constexpr std::size_t kSharedLimit = 40 * 1024;
  if (shared > kSharedLimit) {
    throw Error(ErrorCode::kUnsupported, "attn_res on CUDA: width expected at most " +
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
    check_launch("attn_res backward");
  });
  sum_rows(a.partial, blocks, a.width, a.pulled, stream_of(a.stream));
}

}  // namespace kda::model::device
