// libkda_torch_cuda: gives the CUDA backend to the registry that libkda_torch holds. The operators'
// CUDA kernels are registered there already and find the backend from now on.
#include "kda/cuda.h"

namespace {
[[maybe_unused]] const bool registered = [] {
  kda::cuda::register_backend();
  return true;
}();
}  // namespace
