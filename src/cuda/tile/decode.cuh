// What the two decode kernels (K = V = 128) share, so that their bits are the same: a thread has 16
// rows of 4 columns of a state.
#pragma once

#include <cstdint>

#include "cuda/args.h"
#include "cuda/tile/element.cuh"
#include "cuda/tile/fast_gate.cuh"
#include "cuda/tile/swizzle.cuh"

namespace kda::cuda {

inline constexpr int kDecodeHead = 128;  // K and V
inline constexpr int kDecodeRows = 16;   // per thread

// Four elements as they lie in memory.
__device__ inline void bits_to_floats(Elem elem, const uint4& bits, float (&x)[4]) {
  if (elem == Elem::kF32) {
    x[0] = __uint_as_float(bits.x), x[1] = __uint_as_float(bits.y);
    x[2] = __uint_as_float(bits.z), x[3] = __uint_as_float(bits.w);
  } else if (elem == Elem::kBF16) {
    x[0] = low_of(bits.x), x[1] = high_of(bits.x);
    x[2] = low_of(bits.y), x[3] = high_of(bits.y);
  } else {
    const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&bits.x));
    const float2 b = __half22float2(*reinterpret_cast<const __half2*>(&bits.y));
    x[0] = a.x, x[1] = a.y, x[2] = b.x, x[3] = b.y;
  }
}

__device__ inline float square4(const float (&x)[4]) {
  return fmaf(x[3], x[3], fmaf(x[2], x[2], fmaf(x[0], x[0], x[1] * x[1])));
}

__device__ inline void add_to(float (&sum)[4], const float4& x) {
  sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
}

// Normalises q or k, four channels per lane, and rounds as its type would.
__device__ inline void unit_vector(Elem elem, float (&x)[4]) {
  const float rstd = rsqrtf(warp_sum(square4(x)) + kNormEps);
#pragma unroll
  for (int e = 0; e < 4; ++e)
    x[e] = round_to(elem, x[e] * rstd);
}

// state = S' = diag(decay + 1) S; sk += S'^T k, sq += S'^T q, qk += q.k over the thread's rows.
__device__ inline void decay_and_multiply(const float* q_rows, const float* k_rows,
                                          const float* decay_rows, float (&state)[kDecodeRows][4],
                                          float (&sk)[4], float (&sq)[4], float& qk) {
#pragma unroll
  for (int a4 = 0; a4 < kDecodeRows; a4 += 4) {
    const float4 q4 = *reinterpret_cast<const float4*>(q_rows + a4);
    const float4 k4 = *reinterpret_cast<const float4*>(k_rows + a4);
    const float4 decay4 = *reinterpret_cast<const float4*>(decay_rows + a4);
    const float q[4] = {q4.x, q4.y, q4.z, q4.w};
    const float k[4] = {k4.x, k4.y, k4.z, k4.w};
    const float decay[4] = {decay4.x, decay4.y, decay4.z, decay4.w};
#pragma unroll
    for (int a = 0; a < 4; ++a) {
      qk = fmaf(q[a], k[a], qk);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = state[a4 + a][e];
        x = fmaf(x, decay[a], x);
        sk[e] = fmaf(x, k[a], sk[e]);
        sq[e] = fmaf(x, q[a], sq[e]);
      }
    }
  }
}

// state += k u^T.
__device__ inline void add_outer(const float* k_rows, const float (&u)[4],
                                 float (&state)[kDecodeRows][4]) {
#pragma unroll
  for (int a4 = 0; a4 < kDecodeRows; a4 += 4) {
    const float4 k4 = *reinterpret_cast<const float4*>(k_rows + a4);
    const float k[4] = {k4.x, k4.y, k4.z, k4.w};
#pragma unroll
    for (int a = 0; a < 4; ++a) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        state[a4 + a][e] = fmaf(k[a], u[e], state[a4 + a][e]);
    }
  }
}

// o = weight o / sqrt(mean o^2 + eps) sigmoid(gate); the warp holds all 128 columns. The gate's
// bits: of its own type where its rows move in vectors, else f32.
__device__ inline void normalise_output(const OutNorm& norm, const uint4& gate_bits, int lane,
                                        float (&o)[4]) {
  const float rstd = rsqrtf(fmaf(warp_sum(square4(o)), 1.0F / kDecodeHead, norm.eps));
#pragma unroll
  for (int e = 0; e < 4; ++e)
    o[e] *= rstd * __ldg(norm.weight + 4 * lane + e);
  if (norm.gate.data == nullptr) return;
  float gate[4];
  bits_to_floats(norm.gate.vector ? norm.gate.elem : Elem::kF32, gate_bits, gate);
#pragma unroll
  for (int e = 0; e < 4; ++e)
    o[e] *= fast_sigmoid(gate[e]);
}

// Four columns of the output, the first at offset `at`.
__device__ inline void store_output(const Tensor& to, std::int64_t at, const float (&o)[4]) {
  if (to.vector && to.elem == Elem::kBF16) {
    *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(to.data) + at) =
        make_uint2(pack_bf16(o[0], o[1]), pack_bf16(o[2], o[3]));
    return;
  }
#pragma unroll
  for (int e = 0; e < 4; ++e)
    store(to, at + e * to.s3, o[e]);
}

__device__ inline const Tensor& state_source(const RecurrentArgs& args) {
  return args.pool.data != nullptr ? args.pool : args.in.initial_state;
}

// The thread's rows to memory, `stride` elements from one to the next.
template <typename State>
__device__ inline void store_rows4(State* at, std::int64_t stride,
                                   const float (&state)[kDecodeRows][4]) {
#pragma unroll
  for (int a = 0; a < kDecodeRows; ++a) {
    if constexpr (sizeof(State) == 4) {
      __stcs(reinterpret_cast<float4*>(at),
             make_float4(state[a][0], state[a][1], state[a][2], state[a][3]));
    } else {
      __stcs(reinterpret_cast<uint2*>(at),
             make_uint2(pack_bf16(state[a][0], state[a][1]), pack_bf16(state[a][2], state[a][3])));
    }
    at += stride;
  }
}

}  // namespace kda::cuda
