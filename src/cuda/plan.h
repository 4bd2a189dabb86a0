// The one place where workspace bytes are laid out: sizes and pointers come from the same walk.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.h"
#include "cuda/args.h"

namespace kda::cuda {

// Hands out aligned parts of a buffer; with a null base it only counts.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}

  template <typename T>
  T* take(std::int64_t count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    T* part = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
    return part;
  }
  std::size_t used() const { return used_; }

 private:
  char* base_;
  std::size_t used_ = 0;
};

// Which kernels serve a chunk call: tensor cores on bf16 operands, or f32 arithmetic throughout.
enum class Path { kMma, kSimt };
Path path_of(const core::Problem& problem);
// Head size that the kernels of a path work with: factor tiles have this many columns.
std::int64_t padded_head(std::int64_t dim, Path path);

// Fill the workspace pointers of `args` (null base: count only); return the bytes used.
std::size_t plan_chunk_forward(const core::Problem& problem, void* base, ChunkArgs* args);
// Only the tables of a packed call: what the fused forward for Hopper wants.
std::size_t plan_chunk_map(const core::Problem& problem, void* base, ChunkArgs* args);
std::size_t plan_chunk_backward(const ChunkBackwardParams& params, const core::Problem& problem,
                                void* base, ChunkArgs* args);
std::size_t plan_recurrent(const core::Problem& problem, void* base, std::int64_t** offsets);

struct GatePartials {
  std::int64_t num_blocks = 0;
  float* dbias = nullptr;   // [num_blocks,HV,K]
  float* da_log = nullptr;  // [num_blocks,HV]
};
inline constexpr int kGateBlockTokens = 128;
std::size_t plan_gate_backward(const GateBackwardParams& params, const core::Problem& problem,
                               void* base, GatePartials* partials);

}  // namespace kda::cuda
