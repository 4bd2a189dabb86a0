// RMSNorm of each head's value channels times the sigmoid of the output gate. See
// model/gated_norm.h.
//
// A warp takes one head of one token; a lane holds N neighbouring channels at a time. With
// n = x * r, s = sigmoid(gate), u = dy * gain * s and c = mean(u * n):
//   dx = r * (u - n * c);   dgate = dy * n * gain * s * (1 - s);   dgain = sum of dy * n * s
#include <algorithm>

#include "model/cuda/element.cuh"
#include "model/cuda/kernels.h"

namespace kda::model::device {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxPerLane = 8;  // V <= 256

// P packs of N channels per lane: V = 32 * N * P, or fewer in the last pack.
template <class T, int N, int P>
__global__ void __launch_bounds__(kThreads) forward_kernel(DeviceGatedNorm a) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t rows = a.tokens * a.heads;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= rows) return;
  const std::int64_t token = row / a.heads;
  const T* x_row = static_cast<const T*>(a.x) + row * a.width;
  const T* gate_row =
      static_cast<const T*>(a.gate) + token * a.gate_stride + (row - token * a.heads) * a.width;
  float x[P][N] = {};
  float squares = 0;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int i = (p * 32 + lane) * N;
    if (i < a.width) load<N>(x_row + i, x[p]);
#pragma unroll
    for (int j = 0; j < N; ++j)
      squares += x[p][j] * x[p][j];
  }
  const float rstd = rsqrtf(warp_sum(squares) / static_cast<float>(a.width) + a.eps);
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int i = (p * 32 + lane) * N;
    if (i >= a.width) continue;
    float gate[N], gain[N];
    load<N>(gate_row + i, gate);
    load<N>(a.gain + i, gain);
#pragma unroll
    for (int j = 0; j < N; ++j)
      x[p][j] *= rstd * gain[j] * sigmoid(gate[j]);
    store<N>(static_cast<T*>(a.y) + row * a.width + i, x[p]);
  }
}

template <class T, int N, int P>
__global__ void __launch_bounds__(kThreads) backward_kernel(DeviceGatedNorm a) {
  __shared__ float sums[kWarps][32 * kMaxPerLane];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t rows = a.tokens * a.heads;
  const float inverse_width = 1.0f / static_cast<float>(a.width);
  float dgain[P][N] = {};
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp; row < rows;
       row += static_cast<std::int64_t>(gridDim.x) * kWarps) {
    const std::int64_t token = row / a.heads;
    const std::int64_t gate_at = token * a.gate_stride + (row - token * a.heads) * a.width;
    float x[P][N] = {};
    float squares = 0;
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int i = (p * 32 + lane) * N;
      if (i < a.width) load<N>(static_cast<const T*>(a.x) + row * a.width + i, x[p]);
#pragma unroll
      for (int j = 0; j < N; ++j)
        squares += x[p][j] * x[p][j];
    }
    const float rstd = rsqrtf(warp_sum(squares) * inverse_width + a.eps);
    float u[P][N] = {};
    float products = 0;
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int i = (p * 32 + lane) * N;
      if (i >= a.width) continue;
      float gate[N], gain[N], dy[N], dgate[N];
      load<N>(static_cast<const T*>(a.gate) + gate_at + i, gate);
      load<N>(a.gain + i, gain);
      load<N>(static_cast<const T*>(a.dy) + row * a.width + i, dy);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float s = sigmoid(gate[j]);
        const float normed = x[p][j] * rstd;
        u[p][j] = dy[j] * gain[j] * s;
        products += u[p][j] * normed;
        dgate[j] = u[p][j] * normed * (1.0f - s);
        dgain[p][j] += dy[j] * normed * s;
      }
      store<N>(static_cast<T*>(a.dgate) + row * a.width + i, dgate);
    }
    const float c = warp_sum(products) * inverse_width;
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int i = (p * 32 + lane) * N;
      if (i >= a.width) continue;
      float dx[N];
#pragma unroll
      for (int j = 0; j < N; ++j)
        dx[j] = rstd * (u[p][j] - x[p][j] * rstd * c);
      store<N>(static_cast<T*>(a.dx) + row * a.width + i, dx);
    }
  }
#pragma unroll
  for (int p = 0; p < P; ++p) {
#pragma unroll
    for (int j = 0; j < N; ++j)
      sums[warp][(p * 32 + lane) * N + j] = dgain[p][j];
  }
  __syncthreads();  // all warps' sums are there
  for (std::int64_t i = threadIdx.x; i < a.width; i += kThreads) {
    float total = 0;
    for (int w = 0; w < kWarps; ++w)
      total += sums[w][i];
    a.partial[blockIdx.x * a.width + i] = total;
  }
}

template <int N, int P>
struct Shape {};

// The pack that covers V with the fewest loads of a lane and keeps every load aligned.
template <class F>
void with_shape(const DeviceGatedNorm& a, bool wide, F&& f) {
  if (a.width > 32 * kMaxPerLane) {
    throw Error(ErrorCode::kUnsupported, "gated_norm on CUDA: width expected at most " +
                                             std::to_string(32 * kMaxPerLane) + ", got " +
                                             std::to_string(a.width));
  }
  if (!wide) return f(Shape<1, 8>{});
  if (a.width <= 64) return f(Shape<2, 1>{});
  if (a.width <= 128) return f(Shape<4, 1>{});
  return f(Shape<4, 2>{});
}

bool is_wide(const DeviceGatedNorm& a, std::int64_t element_bytes) {
  return a.width % 4 == 0 && aligned(4, a.gate, a.gate_stride, element_bytes);
}

}  // namespace

void gated_norm_forward(const DeviceGatedNorm& a) {
  const std::int64_t blocks = (a.tokens * a.heads + kWarps - 1) / kWarps;
  if (blocks == 0) return;
  with_storage(a.storage, [&]<class T>(T) {
    with_shape(a, is_wide(a, sizeof(T)), [&]<int N, int P>(Shape<N, P>) {
      forward_kernel<T, N, P>
          <<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(a.stream)>>>(a);
      check_launch("gated_norm");
    });
  });
}

void gated_norm_backward(const DeviceGatedNorm& a) {
  const std::int64_t blocks =
      std::min<std::int64_t>((a.tokens * a.heads + kWarps - 1) / kWarps, kDevicePartialRows);
  with_storage(a.storage, [&]<class T>(T) {
    with_shape(a, is_wide(a, sizeof(T)), [&]<int N, int P>(Shape<N, P>) {
      if (blocks == 0) return;
      backward_kernel<T, N, P>
          <<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(a.stream)>>>(a);
      check_launch("gated_norm backward");
    });
  });
  sum_rows(a.partial, blocks, a.width, a.dgain, stream_of(a.stream));
}

}  // namespace kda::model::device
