// Barriers in shared memory that count arrivals and flip a phase (sm_80; the wait with try: sm_90).
#pragma once

#include <cstdint>

namespace kda::cuda::ptx {

__device__ inline void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes the initialisation visible to the asynchronous units too.
__device__ inline void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Releases this thread's earlier accesses.
__device__ inline void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives for the warp, whose lanes have met (`__syncwarp`) after what they release.
// compute-sanitizer orders only the accesses of threads that arrive themselves: built for its
// racecheck, all do.
#ifdef KDA_RACECHECK
inline constexpr int kWarpArrivals = 32;
#else
inline constexpr int kWarpArrivals = 1;
#endif
__device__ inline void warp_arrive(std::uint32_t barrier, int lane) {
  if (kWarpArrivals > 1 || lane == 0) mbarrier_arrive(barrier);
}

// Arrives once all cp.async of this thread have landed; part of the count given to init.
__device__ inline void cp_async_mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Waits for the end of the phase with this parity; acquires what the arrivals released.
__device__ inline void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done = 0;
  do {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
}

// The same for two barriers at once.
__device__ inline void mbarrier_wait_both(std::uint32_t a, std::uint32_t parity_a, std::uint32_t b,
                                          std::uint32_t parity_b) {
  std::uint32_t done = 0;
  do {
    asm volatile(
        "{\n"
        ".reg .pred p, q;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 q, [%3], %4;\n"
        "and.pred p, p, q;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(a), "r"(parity_a), "r"(b), "r"(parity_b)
        : "memory");
  } while (done == 0);
}

}  // namespace kda::cuda::ptx
