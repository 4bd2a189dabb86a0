// Words of global memory by which blocks tell one another how far they are.
#pragma once

#include <cstdint>

namespace kda::cuda::ptx {

// Adds, and releases what this thread wrote or has acquired before.
__device__ inline void add_release(std::uint32_t* word, std::uint32_t x) {
  asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(word), "r"(x)
               : "memory");
}
__device__ inline std::uint32_t load_acquire(const std::uint32_t* word) {
  std::uint32_t x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(word) : "memory");
  return x;
}
__device__ inline void sleep_nanoseconds(std::uint32_t x) {
  asm volatile("nanosleep.u32 %0;" ::"r"(x));
}

}  // namespace kda::cuda::ptx
