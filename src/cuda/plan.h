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
Path path_of(const Dims& dims, DType io);
inline Path path_of(const core::Problem& problem) { return path_of(problem.dims, problem.io); }
// Key channels that the kernels of a path work with: factor tiles have this many columns.
std::int64_t padded_key(const Dims& dims, Path path);
// Whether the heads are too wide for one chunk-local tensor-core kernel.
bool is_wide(const Dims& dims, Path path);

// Fill the workspace pointers of `args` (null base: count only); return the bytes used.
// The factors are not part of it where the caller keeps them (plan_kept).
std::size_t plan_chunk_forward(const ChunkForwardParams& params, const core::Problem& problem,
                               void* base, ChunkArgs* args);
// What the fused forward for Hopper wants: the tables of a packed call, and segments.
std::size_t plan_chunk_map(const core::Problem& problem, void* base, ChunkArgs* args);
// The factors in the caller's memory: throws kInvalidArgument when that is too small.
void plan_kept(const Workspace& kept, const core::Problem& problem, ChunkArgs* args);
std::size_t kept_bytes_per_block(const Dims& dims, DType io);
std::size_t plan_chunk_backward(const ChunkBackwardParams& params, const core::Problem& problem,
                                void* base, ChunkArgs* args);

struct RecurrentPlan {
  std::int64_t* offsets = nullptr;  // [N+1] of packed calls
  float* o = nullptr;               // [B,T,HV,V], where the output's norm is a pass of its own
};
std::size_t plan_recurrent(const core::Problem& problem, bool norm_is_a_pass, void* base,
                           RecurrentPlan* plan);

struct GatePartials {
  std::int64_t num_blocks = 0;
  float* dbias = nullptr;   // [num_blocks,HV,K]
  float* da_log = nullptr;  // [num_blocks,HV]
};
inline constexpr int kGateBlockTokens = 128;
std::size_t plan_gate_backward(const GateBackwardParams& params, const core::Problem& problem,
                               void* base, GatePartials* partials);

}  // namespace kda::cuda
