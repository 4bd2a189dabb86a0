// Kernels of one stream that run beside each other (sm_90), and words of global memory by which the
// blocks of one tell those of the other how far they are.
#pragma once

#include <cstdint>

namespace kda::cuda::ptx {

// Lets a next kernel of the stream that was launched for it (launch_beside) start once every block
// of this one has come here.
__device__ inline void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Waits until the kernel before is done and all that it wrote can be seen.
__device__ inline void wait_prerequisites() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

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
