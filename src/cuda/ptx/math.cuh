// Approximate functions of the special unit, about 2 ulp.
#pragma once

namespace kda::cuda::ptx {

// 2^x; results below 2^-126 are 0.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float rcp_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float rsqrt_approx(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 or 0, in one instruction.
__device__ inline float one_if_equal(float x, float y) {
  float one;
  asm("set.eq.f32.f32 %0, %1, %2;" : "=f"(one) : "f"(x), "f"(y));
  return one;
}

}  // namespace kda::cuda::ptx
