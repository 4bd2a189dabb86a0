// The gate as a prep lane computes it, in log2.
//
//   bounded    decay = bound / (1 + 2^(slope x + offset)),  bound = log2(e) lower_bound,
//              slope = -log2(e) e^A, offset = slope dt_bias
//   standard   decay = bound log2(1 + 2^(slope x + offset)),  bound = -e^A,
//              slope = log2(e), offset = slope dt_bias
#pragma once

#include "cuda/args.h"
#include "cuda/ptx/math.cuh"
#include "cuda/tile/element.cuh"

namespace kda::cuda::hopper {

template <int kChannels>
struct GateLane {
  float slope = 0.0F;
  float bound = 0.0F;
  float offset[kChannels];
};

template <int kChannels, bool kStandard = false>
__device__ inline GateLane<kChannels> gate_lane(const Gate& gate, int hv, int d, int K) {
  GateLane<kChannels> g;
  const float exp_a = gate.a_log != nullptr ? expf(gate.a_log[hv]) : 1.0F;
  g.slope = kStandard ? kLog2E : -kLog2E * exp_a;
  g.bound = kStandard ? -exp_a : kLog2E * gate.lower_bound;
#pragma unroll
  for (int e = 0; e < kChannels; ++e) {
    g.offset[e] = gate.dt_bias != nullptr
                      ? g.slope * gate.dt_bias[static_cast<std::int64_t>(hv) * K + d + e]
                      : 0.0F;
  }
  return g;
}

// log2(1 + 2^y): what is above zero, and t times a polynomial for t = 2^-|y|; 2e-6 relative, also
// where t is tiny and 1 + t would lose it.
__device__ inline float softplus_log2(float y) {
  const float t = ptx::exp2_approx(-fabsf(y));
  float p = 0.0204903465F;
  p = fmaf(p, t, -0.0960662514F);
  p = fmaf(p, t, 0.21558854F);
  p = fmaf(p, t, -0.339247763F);
  p = fmaf(p, t, 0.477705926F);
  p = fmaf(p, t, -0.721162736F);
  p = fmaf(p, t, 1.44269323F);
  return fmaf(p, t, fmaxf(y, 0.0F));
}

// The decay over `bound`.
template <bool kStandard>
__device__ inline float gate_share(float x, float slope, float offset) {
  const float y = fmaf(x, slope, offset);
  if constexpr (kStandard) {
    return softplus_log2(y);
  } else {
    return ptx::rcp_approx(1.0F + ptx::exp2_approx(y));
  }
}

}  // namespace kda::cuda::hopper
