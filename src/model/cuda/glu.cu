// The gated linear unit's product: silu(gate) * up, or SiTU. See model/swiglu.h, model/situ_glu.h.
//
// SiTU, with b1 and b2 the caps, s = sigmoid(g), cap_b(x) = b tanh(x/b):
//   h = cap_b1(g) s cap_b2(u)
//   dh/dg = cap_b2(u) (sech^2(g/b1) s + cap_b1(g) s (1-s));   dh/du = cap_b1(g) s sech^2(u/b2)
#include <algorithm>

#include "model/cuda/element.cuh"
#include "model/cuda/kernels.h"

namespace kda::model::device {
namespace {

constexpr int kThreads = 256;

struct Capped {
  float value, slope;
};

__device__ inline Capped softcap(float x, float cap) {
  const float t = tanhf(x / cap);
  return {cap * t, 1.0f - t * t};
}

template <bool kSitu>
__device__ inline float product(const DeviceGlu& a, float gate, float up) {
  const float s = sigmoid(gate);
  if constexpr (!kSitu) return gate * s * up;
  const float bounded = a.up_cap > 0 ? softcap(up, a.up_cap).value : up;
  return softcap(gate, a.gate_cap).value * s * bounded;
}

template <bool kSitu>
__device__ inline void gradients(const DeviceGlu& a, float gate, float up, float dy, float& dgate,
                                 float& dup) {
  const float s = sigmoid(gate);
  if constexpr (!kSitu) {
    dgate = dy * up * s * (1.0f + gate * (1.0f - s));
    dup = dy * gate * s;
    return;
  }
  const Capped g = softcap(gate, a.gate_cap);
  const Capped u = a.up_cap > 0 ? softcap(up, a.up_cap) : Capped{up, 1.0f};
  dgate = dy * u.value * (g.slope * s + g.value * s * (1.0f - s));
  dup = dy * g.value * s * u.slope;
}

template <class T, int N, bool kSitu>
__global__ void __launch_bounds__(kThreads) forward_kernel(DeviceGlu a, std::int64_t packs) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < packs;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    const std::int64_t row = i * N / a.width;
    const std::int64_t at = row * a.stride + (i * N - row * a.width);
    float gate[N], up[N];
    load<N>(static_cast<const T*>(a.gate) + at, gate);
    load<N>(static_cast<const T*>(a.up) + at, up);
#pragma unroll
    for (int j = 0; j < N; ++j)
      gate[j] = product<kSitu>(a, gate[j], up[j]);
    store<N>(static_cast<T*>(a.y) + i * N, gate);
  }
}

template <class T, int N, bool kSitu>
__global__ void __launch_bounds__(kThreads) backward_kernel(DeviceGlu a, std::int64_t packs) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < packs;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    const std::int64_t row = i * N / a.width;
    const std::int64_t column = i * N - row * a.width;
    float gate[N], up[N], dy[N];
    load<N>(static_cast<const T*>(a.gate) + row * a.stride + column, gate);
    load<N>(static_cast<const T*>(a.up) + row * a.stride + column, up);
    load<N>(static_cast<const T*>(a.dy) + i * N, dy);
    float dgate[N], dup[N];
#pragma unroll
    for (int j = 0; j < N; ++j)
      gradients<kSitu>(a, gate[j], up[j], dy[j], dgate[j], dup[j]);
    store<N>(static_cast<T*>(a.dgate) + row * a.d_stride + column, dgate);
    store<N>(static_cast<T*>(a.dup) + row * a.d_stride + column, dup);
  }
}

template <int N, bool kSitu>
struct Form {};

template <class F>
void with_form(const DeviceGlu& a, bool wide, F&& f) {
  if (a.gate_cap > 0) return wide ? f(Form<4, true>{}) : f(Form<1, true>{});
  return wide ? f(Form<4, false>{}) : f(Form<1, false>{});
}

unsigned blocks_for(std::int64_t packs) {
  constexpr std::int64_t kMostBlocks = 132 * 32;
  return static_cast<unsigned>(std::min((packs + kThreads - 1) / kThreads, kMostBlocks));
}

}  // namespace

void glu_forward(const DeviceGlu& a) {
  if (a.rows == 0) return;
  with_storage(a.storage, [&]<class T>(T) {
    const bool wide = a.width % 4 == 0 && aligned(4, a.gate, a.stride, sizeof(T)) &&
                      aligned(4, a.up, a.stride, sizeof(T));
    with_form(a, wide, [&]<int N, bool kSitu>(Form<N, kSitu>) {
      const std::int64_t packs = a.rows * a.width / N;
      forward_kernel<T, N, kSitu>
          <<<blocks_for(packs), kThreads, 0, stream_of(a.stream)>>>(a, packs);
      check_launch("glu");
    });
  });
}

void glu_backward(const DeviceGlu& a) {
  if (a.rows == 0) return;
  with_storage(a.storage, [&]<class T>(T) {
    const bool wide = a.width % 4 == 0 && aligned(4, a.gate, a.stride, sizeof(T)) &&
                      aligned(4, a.up, a.stride, sizeof(T)) &&
                      aligned(4, a.dgate, a.d_stride, sizeof(T)) &&
                      aligned(4, a.dup, a.d_stride, sizeof(T));
    with_form(a, wide, [&]<int N, bool kSitu>(Form<N, kSitu>) {
      const std::int64_t packs = a.rows * a.width / N;
      backward_kernel<T, N, kSitu>
          <<<blocks_for(packs), kThreads, 0, stream_of(a.stream)>>>(a, packs);
      check_launch("glu backward");
    });
  });
}

}  // namespace kda::model::device
