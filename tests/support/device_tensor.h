// Tensors in guarded, poisoned memory with any layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kda/tensor_view.h"
#include "support/device_memory.h"
#include "support/host_tensor.h"

namespace kda::test {

enum class Layout : std::uint8_t {
  kContiguous,
  kFusedSlice,   // columns of a wider, 16-byte aligned buffer; one more head than the tensor has
  kMisaligned,   // the same, one element off any alignment
  kHeadMajor,    // [B,H,T,X] memory for [B,T,H,X]
  kLastStride2,  // every second element (host backends only)
  kTransposed,   // the last two dimensions swapped in memory: state_vk for state_kv
};

// A tensor inside an allocation whose every other byte (guards on both sides, gaps between rows) is
// NaN, and is checked to stay as it was. A read of a byte that is not the tensor's shows as NaN in
// the result, a write to one in `damage`.
class DeviceTensor {
 public:
  DeviceTensor() = default;  // absent: view() has rank 0
  DeviceTensor(DeviceMemory& memory, DType dtype, std::vector<std::int64_t> shape, Layout layout);

  void upload(const HostTensor& values);                 // rounds to the dtype
  void upload(const std::vector<std::int64_t>& values);  // index tensors
  HostTensor download() const;

  // Every element NaN (as it is after construction).
  void poison();

  TensorView view() const { return view_; }
  // The stored bytes of every element in row-major order, for bit comparisons.
  std::vector<unsigned char> bits() const;
  // What was written outside the tensor since the last upload or poison; empty = nothing.
  std::string damage() const;
  // Whether any byte changed since the last upload or poison.
  bool changed() const;

 private:
  std::vector<unsigned char> current_image() const;
  std::vector<std::int64_t> element_offsets() const;  // bytes from the start of the image
  void send_image();

  DeviceMemory* memory_ = nullptr;
  std::shared_ptr<void> allocation_;
  TensorView view_;
  std::size_t first_byte_ = 0;        // of element [0,0,...] in the image
  std::vector<unsigned char> image_;  // what the allocation held after the last upload or poison
};

}  // namespace kda::test
