// Copies by the bulk engine from shared to global memory (sm_90). Sizes and addresses are multiples
// of 16 bytes; stores to the source by other threads need fence_async_shared before.
#pragma once

#include <cstdint>

namespace kda::cuda::ptx {

__device__ inline void bulk_store(void* to, std::uint32_t from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until the sources of all of this thread's copies may be written again.
__device__ inline void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

}  // namespace kda::cuda::ptx
