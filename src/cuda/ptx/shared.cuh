// Accesses by shared-memory address.
#pragma once

#include <cstdint>

namespace kda::cuda::ptx {

__device__ inline void store_shared(std::uint32_t address, uint4 x) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
}
__device__ inline uint4 load_shared(std::uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}
__device__ inline uint2 load_shared_half(std::uint32_t address) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(address) : "memory");
  return x;
}
__device__ inline void store_shared_pair(std::uint32_t address, std::uint32_t x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
__device__ inline std::uint32_t load_shared_pair(std::uint32_t address) {
  std::uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}

// To global memory, or nowhere.
__device__ inline void store_global_if(void* to, uint4 x, bool wanted) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p st.global.v4.u32 [%0], {%1,%2,%3,%4};\n}" ::"l"(
          to),
      "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(wanted ? 1 : 0)
      : "memory");
}

// The same number, but the compiler does not know it: what is computed from it is computed again
// instead of being kept in registers (or spilled) from an earlier use.
template <typename T>
__device__ inline T forgotten(T x) {
  asm volatile("" : "+r"(x));
  return x;
}
__device__ inline float forgotten(float x) {
  asm volatile("" : "+f"(x));
  return x;
}

}  // namespace kda::cuda::ptx
