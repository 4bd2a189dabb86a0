// Loads and stores of one element of any type a tensor may have, and the scalar functions of the
// operator. Dtype branches are uniform over a launch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/args.h"

namespace kda::cuda {

inline constexpr float kLog2E = 1.4426950408889634F;
inline constexpr float kNormEps = 1e-6F;

__device__ inline float load(const Tensor& t, std::int64_t offset) {
  switch (t.elem) {
    case Elem::kF32:
      return static_cast<const float*>(t.data)[offset];
    case Elem::kBF16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(t.data)[offset]);
    default:
      return __half2float(static_cast<const __half*>(t.data)[offset]);
  }
}

__device__ inline void store(const Tensor& t, std::int64_t offset, float value) {
  switch (t.elem) {
    case Elem::kF32:
      static_cast<float*>(t.data)[offset] = value;
      return;
    case Elem::kBF16:
      static_cast<__nv_bfloat16*>(t.data)[offset] = __float2bfloat16_rn(value);
      return;
    default:
      static_cast<__half*>(t.data)[offset] = __float2half_rn(value);
      return;
  }
}

__device__ inline std::int64_t load_index(const Tensor& t, std::int64_t offset) {
  if (t.elem == Elem::kI32) return static_cast<const std::int32_t*>(t.data)[offset];
  return static_cast<const std::int64_t*>(t.data)[offset];
}

// Rounds to the precision of an element type: what a store followed by a load would give.
__device__ inline float round_to(Elem elem, float value) {
  if (elem == Elem::kBF16) return __bfloat162float(__float2bfloat16_rn(value));
  if (elem == Elem::kF16) return __half2float(__float2half_rn(value));
  return value;
}

__device__ inline float sigmoid(float z) { return 1.0F / (1.0F + expf(-z)); }

// softplus(z) = z above 20, where the difference is below f32 resolution.
__device__ inline float softplus(float z) { return z > 20.0F ? z : log1pf(expf(z)); }

// Parameters of the gate for one (head, channel).
struct GateChannel {
  float bias = 0.0F;
  float exp_a = 1.0F;
};

__device__ inline GateChannel gate_channel(const Gate& gate, int hv, int d, int K) {
  GateChannel c;
  if (gate.kind == GateKind::kReady) return c;
  if (gate.dt_bias != nullptr) c.bias = gate.dt_bias[static_cast<std::int64_t>(hv) * K + d];
  if (gate.a_log != nullptr) c.exp_a = expf(gate.a_log[hv]);
  return c;
}

// Natural-log decay of one element (spec: gate).
__device__ inline float gate_decay(const Gate& gate, const GateChannel& c, float x) {
  if (gate.kind == GateKind::kReady) return x;
  const float z = x + c.bias;
  if (gate.kind == GateKind::kStandard) return -c.exp_a * softplus(z);
  return gate.lower_bound * sigmoid(c.exp_a * z);
}

// Gradient of the pre-activation, given that of the decay; adds the element's share of da_log.
__device__ inline float gate_decay_backward(const Gate& gate, const GateChannel& c, float x,
                                            float da, float* da_log) {
  if (gate.kind == GateKind::kReady) return da;
  const float z = x + c.bias;
  if (gate.kind == GateKind::kStandard) {
    *da_log += da * -c.exp_a * softplus(z);
    return da * -c.exp_a * sigmoid(z);
  }
  // sigmoid(-z) in place of 1 - sigmoid(z), which has lost its digits where the gate is saturated
  const float slope = sigmoid(c.exp_a * z) * sigmoid(-c.exp_a * z);
  const float dz = da * gate.lower_bound * slope * c.exp_a;
  *da_log += dz * z;
  return dz;
}

__device__ inline float beta_of(const Inputs& in, std::int64_t offset) {
  const float b = load(in.beta, offset);
  return in.beta_is_logit ? in.beta_max * sigmoid(b) : b;
}

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    value += __shfl_xor_sync(0xffffffffU, value, step);
  return value;
}

}  // namespace kda::cuda
