// Things that a warpgroup of sm_90a has: movable registers, and the asynchronous view of shared
// memory that wgmma reads through.
#pragma once

#include <cstdint>

namespace kda::cuda::ptx {

template <int kRegisters>
__device__ inline void keep_registers() {  // gives back what is above
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void take_registers() {  // waits until they are free
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Orders this thread's ordinary stores to shared memory before later reads by wgmma.
__device__ inline void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Barrier of the 128 threads of a warpgroup; ids 1 .. 15.
__device__ inline void warpgroup_sync(std::uint32_t id) {
  asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

// Barrier of the first `threads` threads that come to it.
__device__ inline void named_sync(std::uint32_t id, std::uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace kda::cuda::ptx
