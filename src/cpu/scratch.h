// Scratch memory of host calls: a planner that lays out float arrays, and the buffer behind it.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>

#include "kda/error.h"
#include "kda/workspace.h"

namespace kda::cpu {

// Hands out 64-byte aligned float arrays from one block. With a null base it only measures, so the
// same code that takes the arrays computes their total size.
class Planner {
 public:
  explicit Planner(void* base = nullptr) : base_(static_cast<std::byte*>(base)) {}

  float* floats(std::size_t count) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (count * sizeof(float) + 63) / 64 * 64;
    return reinterpret_cast<float*>(at);
  }
  // Rounded up to a page, so that the threads' parts never share a line.
  std::size_t bytes() const { return (used_ + 4095) / 4096 * 4096; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

// Leading dimension for rows of n floats: whole cache lines, an odd number of them. Powers of two
// would map every row of a tile to the same few cache sets.
inline std::size_t padded_row(std::size_t n) {
  const std::size_t lines = (n + 15) / 16;
  return (lines % 2 == 0 ? lines + 1 : lines) * 16;
}

// The caller's workspace when it brought one, else memory for the length of the call.
class ScratchBuffer {
 public:
  ScratchBuffer(std::size_t bytes, const Workspace& workspace) {
    if (bytes == 0) return;
    if (workspace.data != nullptr) {
      if (workspace.bytes < bytes) {
        throw Error(ErrorCode::kOutOfMemory, "workspace: expected at least " +
                                                 std::to_string(bytes) + " bytes, given " +
                                                 std::to_string(workspace.bytes));
      }
      data_ = workspace.data;
      return;
    }
    owned_.reset(std::aligned_alloc(kWorkspaceAlignment, round_up(bytes)));
    if (owned_ == nullptr) {
      throw Error(ErrorCode::kOutOfMemory,
                  "scratch memory: could not allocate " + std::to_string(bytes) + " bytes");
    }
    data_ = owned_.get();
  }
  void* data() const { return data_; }
  void* at(std::size_t offset) const {
    return data_ == nullptr ? nullptr : static_cast<std::byte*>(data_) + offset;
  }

 private:
  static std::size_t round_up(std::size_t bytes) {
    return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  }
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> owned_;
  void* data_ = nullptr;
};

}  // namespace kda::cpu
