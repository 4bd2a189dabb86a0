// Vectors of f32 or of 16-bit pairs, by shared-memory address.
#pragma once

#include <cstdint>

namespace kda::cuda::ptx {

__device__ inline float load_shared_f(std::uint32_t address) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
}
__device__ inline float2 load_shared_f2(std::uint32_t address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address));
  return x;
}
__device__ inline float4 load_shared_f4(std::uint32_t address) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(address));
  return x;
}
__device__ inline void store_shared_f(std::uint32_t address, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}
__device__ inline void store_shared_f2(std::uint32_t address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}
// Without a branch.
__device__ inline void store_shared_f2_if(std::uint32_t address, float x, float y, bool wanted) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n@p st.shared.v2.f32 [%0], {%1,%2};\n}" ::"r"(
          address),
      "f"(x), "f"(y), "r"(wanted ? 1 : 0)
      : "memory");
}
__device__ inline void store_shared_f4(std::uint32_t address, float x, float y, float z, float w) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(x), "f"(y), "f"(z),
               "f"(w)
               : "memory");
}
__device__ inline void store_shared_half(std::uint32_t address, std::uint16_t bits) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(bits) : "memory");
}

// One or two words.
__device__ inline void load_shared_words(std::uint32_t address, std::uint32_t (&x)[1]) {
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x[0]) : "r"(address));
}
__device__ inline void load_shared_words(std::uint32_t address, std::uint32_t (&x)[2]) {
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(address));
}
__device__ inline void store_shared_words(std::uint32_t address, const std::uint32_t (&x)[1]) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x[0]) : "memory");
}
__device__ inline void store_shared_words(std::uint32_t address, const std::uint32_t (&x)[2]) {
  asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(address), "r"(x[0]), "r"(x[1]) : "memory");
}

}  // namespace kda::cuda::ptx
