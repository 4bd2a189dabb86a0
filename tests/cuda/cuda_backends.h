// The CUDA backend for the test kit: device memory, and its rows of the backend list.
#pragma once

#include "support/test_backends.h"

namespace kda::test {

// Whether this process can use a GPU; where not, `reason` says why.
bool have_gpu(std::string* reason);

// Memory of the current device, copied on a stream of its own.
DeviceMemory& cuda_memory();

// cuda_f32, cuda_bf16, cuda_f16.
std::vector<TestBackend> cuda_backends();

}  // namespace kda::test
