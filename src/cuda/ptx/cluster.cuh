// Two blocks of a cluster: addresses in each other's shared memory, arrivals there, copies from one
// to the other by the bulk engine (sm_90).
#pragma once

#include <cstdint>

namespace kda::cuda::ptx {

// Where `address` of this block's shared memory lies in that of the cluster's block `rank`.
__device__ inline std::uint32_t map_shared(std::uint32_t address, std::uint32_t rank) {
  std::uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// All threads of the cluster meet; what came before is visible to all after.
__device__ inline void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;\n" ::
          : "memory");
}

// If `on`, arrives at a barrier of any block of the cluster, this one's by its plain address. It
// releases this thread's earlier accesses within its own block only: release at the scope of the
// cluster is a fence of the whole memory. (No branch: it would stand between products.)
__device__ inline void mbarrier_arrive_mapped(std::uint32_t mapped, bool on) {
  asm volatile(
      "{\n.reg .pred on;\nsetp.ne.b32 on, %1, 0;\n"
      "@on mbarrier.arrive.shared::cluster.b64 _, [%0];\n}" ::"r"(mapped),
      "r"(on ? 1 : 0)
      : "memory");
}

// Arrives, and the phase also waits for `bytes` of bulk copies.
__device__ inline void mbarrier_expect_mapped(std::uint32_t mapped, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(mapped),
               "r"(bytes)
               : "memory");
}

// Copies into the other block's shared memory, counted by `barrier` there. Sizes and addresses are
// multiples of 16 bytes; stores to the source by other threads need fence_async_shared before.
__device__ inline void bulk_send(std::uint32_t mapped, std::uint32_t from, std::uint32_t bytes,
                                 std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(mapped),
      "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

}  // namespace kda::cuda::ptx
