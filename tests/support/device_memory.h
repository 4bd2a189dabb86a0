// Where a test's tensors live. The host implementation is here; a CUDA test program brings its own
// and runs the same cases.
#pragma once

#include <cstddef>

#include "kda/types.h"

namespace kda::test {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual MemorySpace space() const = 0;
  // Aligned to kWorkspaceAlignment; the contents are undefined.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* data) = 0;
  // Both wait for the stream's earlier work and return when the copy is done.
  virtual void upload(void* device, const void* host, std::size_t bytes) = 0;
  virtual void download(void* host, const void* device, std::size_t bytes) = 0;
  // Every byte gets this value; in the order of the stream.
  virtual void fill(void* device, unsigned char value, std::size_t bytes) = 0;
  // Context::stream of the calls.
  virtual void* stream() { return nullptr; }
};

DeviceMemory& host_memory();

}  // namespace kda::test
