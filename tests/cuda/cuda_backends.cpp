#include "cuda/cuda_backends.h"

#include <cuda_runtime_api.h>

#include <cstdlib>

#include "kda/cuda.h"
#include "kda/error.h"

namespace kda::test {
namespace {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    throw Error(ErrorCode::kCuda, std::string(what) + ": " + cudaGetErrorString(status));
  }
}

class CudaMemory : public DeviceMemory {
 public:
  MemorySpace space() const override { return MemorySpace::kCuda; }
  void* allocate(std::size_t bytes) override {
    void* data = nullptr;
    check(cudaMalloc(&data, bytes == 0 ? 1 : bytes), "cudaMalloc");
    return data;
  }
  void release(void* data) override { check(cudaFree(data), "cudaFree"); }
  void upload(void* device, const void* host, std::size_t bytes) override {
    copy(device, host, bytes, cudaMemcpyHostToDevice);
  }
  void download(void* host, const void* device, std::size_t bytes) override {
    copy(host, device, bytes, cudaMemcpyDeviceToHost);
  }
  void fill(void* device, unsigned char value, std::size_t bytes) override {
    auto* stream = static_cast<cudaStream_t>(this->stream());
    check(cudaMemsetAsync(device, value, bytes, stream), "cudaMemsetAsync");
  }
  void* stream() override {
    if (stream_ == nullptr) {
      check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    }
    return stream_;
  }

 private:
  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    auto* stream = static_cast<cudaStream_t>(this->stream());
    check(cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }
  cudaStream_t stream_ = nullptr;
};

const AddTestBackends g_added(cuda_backends(), /*alone=*/true);

}  // namespace

bool have_gpu(std::string* reason) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return true;
  *reason = std::string("no usable GPU: ") + cudaGetErrorString(status);
  return false;
}

DeviceMemory& cuda_memory() {
  static auto* memory = new CudaMemory;  // outlives every test object
  return *memory;
}

std::vector<TestBackend> cuda_backends() {
  std::string reason;
  if (!have_gpu(&reason)) return {};
  cuda::register_backend();
  // The kernels that any GPU runs, also where there are faster ones.
  if (std::getenv("KDA_TEST_PORTABLE") != nullptr) cuda::set_hopper_enabled(false);
  return {
      {"cuda_f32", Backend::kCuda, DType::kF32, Arithmetic::kF32, &cuda_memory()},
      {"cuda_bf16", Backend::kCuda, DType::kBF16, Arithmetic::kHalfOperands, &cuda_memory()},
      {"cuda_f16", Backend::kCuda, DType::kF16, Arithmetic::kHalfOperands, &cuda_memory()},
  };
}

}  // namespace kda::test
