#include "support/device_memory.h"

#include <cstring>
#include <new>

#include "kda/workspace.h"

namespace kda::test {
namespace {

class HostMemory final : public DeviceMemory {
 public:
  MemorySpace space() const override { return MemorySpace::kHost; }
  void* allocate(std::size_t bytes) override {
    return ::operator new (bytes, std::align_val_t{kWorkspaceAlignment});
  }
  void release(void* data) override {
    ::operator delete (data, std::align_val_t{kWorkspaceAlignment});
  }
  void upload(void* device, const void* host, std::size_t bytes) override {
    std::memcpy(device, host, bytes);
  }
  void download(void* host, const void* device, std::size_t bytes) override {
    std::memcpy(host, device, bytes);
  }
  void fill(void* device, unsigned char value, std::size_t bytes) override {
    std::memset(device, value, bytes);
  }
};

}  // namespace

DeviceMemory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace kda::test
