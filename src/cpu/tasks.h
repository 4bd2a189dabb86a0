// Independent tasks over OpenMP threads. A task's arithmetic never depends on the thread that runs
// it, so results are the same bits for every thread count.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kda/parallel.h"

#if defined(__SSE__) || defined(_M_X64)
#include <xmmintrin.h>
#endif

namespace kda::cpu {

// Decays underflow often; subnormal operands cost microcode assists and carry nothing that f32
// results could show. Restores the caller's mode on destruction.
class FlushSubnormals {
 public:
#if defined(__SSE__) || defined(_M_X64)
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040U); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  FlushSubnormals() = default;
  ~FlushSubnormals() {}
#endif
 public:
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;
};

// Threads that `count` tasks will use.
inline int threads_for(std::int64_t count) {
  if (omp_in_parallel() != 0) return 1;
  return static_cast<int>(std::clamp<std::int64_t>(count, 1, num_threads()));
}

// Calls work(task, thread) for every task in [0, count); `work` must not throw.
template <typename Work>
void run_tasks(std::int64_t count, int threads, const Work& work) {
  if (threads <= 1) {
    const FlushSubnormals mode;
    for (std::int64_t task = 0; task < count; ++task)
      work(task, 0);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const FlushSubnormals mode;
    const int thread = omp_get_thread_num();
#pragma omp for schedule(dynamic, 1) nowait
    for (std::int64_t task = 0; task < count; ++task)
      work(task, thread);
  }
}

}  // namespace kda::cpu
