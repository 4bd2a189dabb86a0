// The gate with the special unit: about 1e-6 relative, for kernels whose operands are 16 bits wide.
#pragma once

#include "cuda/ptx/math.cuh"
#include "cuda/tile/element.cuh"

namespace kda::cuda {

__device__ inline float fast_sigmoid(float z) {
  return ptx::rcp_approx(1.0F + ptx::exp2_approx(-kLog2E * z));
}

// sigmoid(z) sigmoid(-z), given t = -log2(e) z, without the digits that 1 - sigmoid(z) would lose.
__device__ inline float fast_sigmoid_slope(float t) {
  const float x = ptx::exp2_approx(-fabsf(t));
  const float s = ptx::rcp_approx(1.0F + x);
  return x * s * s;
}

// log(1 + e^z). Below 2^-4 the series of log1p keeps the digits that 1 + t would lose.
__device__ inline float fast_softplus(float z) {
  const float t = ptx::exp2_approx(-kLog2E * fabsf(z));
  const float series = t * (1.0F - t * (0.5F - t * (0.33333333F - t * (0.25F - t * 0.2F))));
  const float log = 0.69314718F * __log2f(1.0F + t);
  return fmaxf(z, 0.0F) + (t < 0.0625F ? series : log);
}

// Natural-log decay of one element.
__device__ inline float fast_decay(const Gate& gate, float bias, float exp_a, float x) {
  if (gate.kind == GateKind::kReady) return x;
  const float z = x + bias;
  if (gate.kind == GateKind::kStandard) return -exp_a * fast_softplus(z);
  return gate.lower_bound * fast_sigmoid(exp_a * z);
}

// Gradient of the pre-activation; adds the element's share of da_log.
__device__ inline float fast_decay_backward(const Gate& gate, float bias, float exp_a, float x,
                                            float da, float* da_log) {
  if (gate.kind == GateKind::kReady) return da;
  const float z = x + bias;
  if (gate.kind == GateKind::kStandard) {
    *da_log -= da * exp_a * fast_softplus(z);
    return -da * exp_a * fast_sigmoid(z);
  }
  const float dz = da * gate.lower_bound * fast_sigmoid_slope(kLog2E * exp_a * z) * exp_a;
  *da_log += dz * z;
  return dz;
}

}  // namespace kda::cuda
