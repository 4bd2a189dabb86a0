#include "kda/parallel.h"

#include <omp.h>

#include <algorithm>
#include <atomic>

namespace kda {
namespace {
constexpr int kMaxDefaultThreads = 4096;

// The count OpenMP started with (OMP_NUM_THREADS, else the cores of the process's affinity mask).
int default_threads() {
  // OpenMP takes any number from the environment, and 100,000 stacks take the machine down.
  static const int count = std::min(omp_get_max_threads(), kMaxDefaultThreads);
  return count;
}
std::atomic<int> g_threads{0};
}  // namespace

void set_num_threads(int count) {
  const int fallback = default_threads();
  const int effective = count > 0 ? count : fallback;
  g_threads.store(effective);
  omp_set_num_threads(effective);
}

int num_threads() {
  const int set = g_threads.load();
  return set > 0 ? set : default_threads();
}

}  // namespace kda
