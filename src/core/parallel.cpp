#include "kda/parallel.h"

#include <omp.h>

#include <atomic>

namespace kda {
namespace {
// The count OpenMP started with (OMP_NUM_THREADS, else the cores of the process's affinity mask).
int default_threads() {
  static const int count = omp_get_max_threads();
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
