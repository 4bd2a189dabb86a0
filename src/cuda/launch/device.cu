#include "cuda/launch/check.cuh"
#include "cuda/launch/launch.h"

namespace kda::cuda {

DeviceLimits device_limits() {
  DeviceLimits limits;
  int device = 0;
  const cudaError_t status = cudaGetDevice(&device);
  if (status != cudaSuccess) {
    cudaGetLastError();  // the next launch is not to blame for it
    limits.error = cudaGetErrorString(status);
    return limits;
  }
  limits.major = device_attribute(cudaDevAttrComputeCapabilityMajor);
  limits.minor = device_attribute(cudaDevAttrComputeCapabilityMinor);
  limits.shared_bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return limits;
}

}  // namespace kda::cuda
