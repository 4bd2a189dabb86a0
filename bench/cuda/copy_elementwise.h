// A plain kernel that reads and writes every byte once: the rate to compare decode with.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

// `to` may be `from`: each 16-byte piece is read, then written (the sign of one float changes, so
// that the write cannot be dropped). bytes: a multiple of 16.
void copy_elementwise(const void* from, void* to, std::size_t bytes, cudaStream_t stream);
