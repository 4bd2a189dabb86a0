// Causal depthwise convolution with SiLU over packed sequences. See model/short_conv.h.
//
// A block takes kDeviceConvRows tokens of 128 * N channels; a thread walks along the tokens of its
// N channels with the last W-1 inputs in registers. Backward walks W-1 tokens further: an input's
// gradient is complete once the tokens that it reaches have passed.
#include <algorithm>

#include "model/cuda/element.cuh"
#include "model/cuda/kernels.h"

namespace kda::model::device {
namespace {

constexpr int kThreads = 128;

// The sequence that a token walk is in.
struct Place {
  std::int64_t sequence, begin, end;

  // Last sequence that starts at or before t: empty ones before it are passed over.
  __device__ Place(const std::int64_t* cu, std::int64_t count, std::int64_t t) {
    std::int64_t low = 0;
    std::int64_t high = count - 1;
    while (low < high) {
      const std::int64_t middle = (low + high + 1) / 2;
      if (cu[middle] <= t) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    sequence = low;
    begin = cu[low];
    end = cu[low + 1];
  }

  __device__ void advance(const std::int64_t* cu, std::int64_t t) {
    while (cu[sequence + 1] <= t)
      ++sequence;
    begin = cu[sequence];
    end = cu[sequence + 1];
  }
};

template <int W, int N>
struct Weights {
  float tap[W][N];  // tap[b] multiplies the input b tokens back

  __device__ Weights(const float* weight, std::int64_t channel) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (int b = 0; b < W; ++b)
        tap[b][i] = weight[(channel + i) * W + W - 1 - b];
    }
  }
};

// past[b-1]: the input b tokens before t, of the same sequence, its window, or zero.
template <class T, int W, int N>
__device__ void load_past(const DeviceConv& a, const Place& place, std::int64_t t,
                          std::int64_t channel, float (&past)[W - 1][N]) {
#pragma unroll
  for (int b = 1; b < W; ++b) {
    const std::int64_t source = t - b;
    if (source >= place.begin) {
      load<N>(static_cast<const T*>(a.x) + source * a.x_stride + channel, past[b - 1]);
      continue;
    }
    const std::int64_t row = W - 1 + (source - place.begin);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      past[b - 1][i] = a.window == nullptr ? 0.0f
                                           : a.window[place.sequence * a.window_sequence_stride +
                                                      row * a.window_row_stride + channel + i];
    }
  }
}

template <int W, int N>
__device__ void shift(float (&past)[W - 1][N], const float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int b = W - 2; b > 0; --b)
      past[b][i] = past[b - 1][i];
    past[0][i] = x[i];
  }
}

template <int W, int N>
__device__ void convolve(const Weights<W, N>& w, const float (&x)[N], const float (&past)[W - 1][N],
                         float (&z)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    z[i] = w.tap[0][i] * x[i];
#pragma unroll
    for (int b = 1; b < W; ++b)
      z[i] += w.tap[b][i] * past[b - 1][i];
  }
}

template <class T, int W, int N>
__global__ void __launch_bounds__(kThreads) forward_kernel(DeviceConv a) {
  const std::int64_t channel = (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  if (channel >= a.channels) return;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kDeviceConvRows;
  const std::int64_t last = min(first + kDeviceConvRows, a.tokens);
  const Weights<W, N> w(a.weight, channel);
  Place place(a.cu_seqlens, a.num_sequences, first);
  float past[W - 1][N];
  load_past<T, W, N>(a, place, first, channel, past);
  for (std::int64_t t = first; t < last; ++t) {
    if (t >= place.end) {
      place.advance(a.cu_seqlens, t);
      load_past<T, W, N>(a, place, t, channel, past);
    }
    float x[N], z[N];
    load<N>(static_cast<const T*>(a.x) + t * a.x_stride + channel, x);
    convolve<W, N>(w, x, past, z);
    shift<W, N>(past, x);
#pragma unroll
    for (int i = 0; i < N; ++i)
      z[i] *= sigmoid(z[i]);
    store<N>(static_cast<T*>(a.y) + t * a.channels + channel, z);
  }
}

template <class T, int W, int N>
__global__ void __launch_bounds__(kThreads) backward_kernel(DeviceConv a) {
  const std::int64_t channel = (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  if (channel >= a.channels) return;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kDeviceConvRows;
  const std::int64_t last = min(first + kDeviceConvRows, a.tokens);
  const Weights<W, N> w(a.weight, channel);
  Place place(a.cu_seqlens, a.num_sequences, first);
  float past[W - 1][N];
  load_past<T, W, N>(a, place, first, channel, past);
  float dw[W][N] = {};
  float dx[W][N] = {};  // dx[b]: gradient of the input b tokens back, so far
  for (std::int64_t t = first; t < last + W - 1; ++t) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (int b = W - 1; b > 0; --b)
        dx[b][i] = dx[b - 1][i];
      dx[0][i] = 0;
    }
    if (t < a.tokens) {
      if (t >= place.end) {
        place.advance(a.cu_seqlens, t);
        load_past<T, W, N>(a, place, t, channel, past);
      }
      float x[N], z[N], dz[N];
      load<N>(static_cast<const T*>(a.x) + t * a.x_stride + channel, x);
      load<N>(static_cast<const T*>(a.dy) + t * a.dy_stride + channel, dz);
      convolve<W, N>(w, x, past, z);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float s = sigmoid(z[i]);
        dz[i] *= s * (1.0f + z[i] * (1.0f - s));
      }
      const std::int64_t position = t - place.begin;
#pragma unroll
      for (int b = 0; b < W; ++b) {
        if (position < b) break;
#pragma unroll
        for (int i = 0; i < N; ++i)
          dx[b][i] += w.tap[b][i] * dz[i];
      }
      if (t < last) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          dw[0][i] += dz[i] * x[i];
#pragma unroll
          for (int b = 1; b < W; ++b)
            dw[b][i] += dz[i] * past[b - 1][i];
        }
      }
      shift<W, N>(past, x);
    }
    const std::int64_t done = t - (W - 1);
    if (done >= first && done < last) {
      store<N>(static_cast<T*>(a.dx) + done * a.channels + channel, dx[W - 1]);
    }
  }
  float* partial = a.partial + (static_cast<std::int64_t>(blockIdx.x) * a.channels + channel) * W;
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int b = 0; b < W; ++b)
      partial[i * W + W - 1 - b] = dw[b][i];
  }
}

// The last W-1 rows of [window; new rows] of every sequence become its window.
template <class T, int W>
__global__ void __launch_bounds__(kThreads) advance_kernel(DeviceConv a) {
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (channel >= a.channels) return;
  const std::int64_t sequence = blockIdx.x;
  const std::int64_t end = a.cu_seqlens[sequence + 1];
  const std::int64_t count = end - a.cu_seqlens[sequence];
  float* window = a.window + sequence * a.window_sequence_stride + channel;
  float row[W - 1];
#pragma unroll
  for (int r = 0; r < W - 1; ++r) {
    const std::int64_t back = W - 1 - r;
    row[r] = back <= count ? widen(static_cast<const T*>(a.x)[(end - back) * a.x_stride + channel])
                           : window[(r + count) * a.window_row_stride];
  }
#pragma unroll
  for (int r = 0; r < W - 1; ++r)
    window[r * a.window_row_stride] = row[r];
}

template <class F>
void with_width(int width, F&& f) {
  switch (width) {
    case 2:
      return f(std::integral_constant<int, 2>{});
    case 3:
      return f(std::integral_constant<int, 3>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
    default:
      throw Error(ErrorCode::kInternal, "short_conv: no kernel of width " + std::to_string(width));
  }
}

dim3 grid_of(const DeviceConv& a, int n) {
  const std::int64_t pieces = (a.tokens + kDeviceConvRows - 1) / kDeviceConvRows;
  const std::int64_t columns = (a.channels + kThreads * n - 1) / (kThreads * n);
  return {static_cast<unsigned>(pieces), static_cast<unsigned>(columns)};
}

}  // namespace

void short_conv_forward(const DeviceConv& a) {
  const cudaStream_t stream = stream_of(a.stream);
  with_storage(a.storage, [&]<class T>(T) {
    with_width(a.width, [&]<int W>(std::integral_constant<int, W>) {
      const bool wide = a.channels % 4 == 0 && aligned(4, a.x, a.x_stride, sizeof(T));
      if (a.tokens > 0 && wide) {
        forward_kernel<T, W, 4><<<grid_of(a, 4), kThreads, 0, stream>>>(a);
      } else if (a.tokens > 0) {
        forward_kernel<T, W, 1><<<grid_of(a, 1), kThreads, 0, stream>>>(a);
      }
      check_launch("short_conv");
      if (a.window == nullptr || a.num_sequences == 0) return;
      const dim3 grid(static_cast<unsigned>(a.num_sequences), grid_of(a, 1).y);
      advance_kernel<T, W><<<grid, kThreads, 0, stream>>>(a);
      check_launch("short_conv window");
    });
  });
}

void short_conv_backward(const DeviceConv& a) {
  const cudaStream_t stream = stream_of(a.stream);
  with_storage(a.storage, [&]<class T>(T) {
    with_width(a.width, [&]<int W>(std::integral_constant<int, W>) {
      const bool wide = a.channels % 4 == 0 && aligned(4, a.x, a.x_stride, sizeof(T)) &&
                        aligned(4, a.dy, a.dy_stride, sizeof(T));
      if (a.tokens > 0 && wide) {
        backward_kernel<T, W, 4><<<grid_of(a, 4), kThreads, 0, stream>>>(a);
      } else if (a.tokens > 0) {
        backward_kernel<T, W, 1><<<grid_of(a, 1), kThreads, 0, stream>>>(a);
      }
      check_launch("short_conv backward");
      sum_rows(a.partial, grid_of(a, 1).x, a.channels * W, a.dweight, stream);
    });
  });
}

}  // namespace kda::model::device
