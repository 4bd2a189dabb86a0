/// Scratch memory handed to an operator.
#pragma once

#include <cstddef>

namespace kda {

/// Alignment of workspaces and of every part that the planner lays out inside one, in bytes.
inline constexpr std::size_t kWorkspaceAlignment = 256;

/// Scratch memory in the backend's memory space. `data == nullptr` lets host backends allocate for
/// the length of the call; the CUDA backend never allocates and refuses it when it needs any.
struct Workspace {
  void* data = nullptr;   ///< aligned to kWorkspaceAlignment
  std::size_t bytes = 0;  ///< extent of `data`
};

}  // namespace kda
