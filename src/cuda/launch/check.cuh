// Error checks and launch helpers shared by the launch functions.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "kda/error.h"

namespace kda::cuda {

inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(ErrorCode::kCuda, std::string(what) + ": " + cudaGetErrorName(status) + " (" +
                                    cudaGetErrorString(status) + ")");
}

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

inline unsigned grid_of(std::int64_t blocks, const char* what) {
  if (blocks > 2147483647) {
    throw Error(ErrorCode::kUnsupported, std::string(what) + ": " + std::to_string(blocks) +
                                             " blocks, a launch has at most 2147483647");
  }
  return static_cast<unsigned>(blocks);
}

// Raises a kernel's limit of dynamic shared memory where `smem` needs it.
template <typename... Params>
void allow_smem(const char* what, void (*kernel)(Params...), std::size_t smem) {
  if (smem <= 48 * 1024) return;
  const int limit = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (smem > static_cast<std::size_t>(limit)) {
    throw Error(ErrorCode::kUnsupported, std::string(what) + ": it takes " + std::to_string(smem) +
                                             " bytes of shared memory per block, the GPU has " +
                                             std::to_string(limit));
  }
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(smem)),
             what);
}

// Launches on `stream`; raises the dynamic shared memory limit where needed.
template <typename... Params, typename... Args>
void launch(const char* what, void (*kernel)(Params...), std::int64_t blocks, int threads,
            std::size_t smem, void* stream, const Args&... args) {
  if (blocks <= 0) return;
  allow_smem(what, kernel, smem);
  kernel<<<grid_of(blocks, what), static_cast<unsigned>(threads), smem,
           static_cast<cudaStream_t>(stream)>>>(args...);
  check_cuda(cudaGetLastError(), what);
}

// The same in clusters of two blocks (sm_90).
template <typename... Params, typename... Args>
void launch_pairs(const char* what, void (*kernel)(Params...), std::int64_t pairs, int threads,
                  std::size_t smem, void* stream, const Args&... args) {
  if (pairs <= 0) return;
  allow_smem(what, kernel, smem);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = 2;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid_of(2 * pairs, what));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = smem;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, args...), what);
  check_cuda(cudaGetLastError(), what);
}

}  // namespace kda::cuda
