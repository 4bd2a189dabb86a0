#include <ATen/Parallel.h>

#include "binding/functional.h"
#include "kda/parallel.h"

namespace kda::binding {

void set_num_threads(int count) {
  kda::set_num_threads(count);
  at::set_num_threads(kda::num_threads());  // OpenMP's count again, and MKL's
}

int num_threads() { return kda::num_threads(); }

}  // namespace kda::binding
