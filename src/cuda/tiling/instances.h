// The head sizes of instances.def as numbers: which instances serve a call.
#pragma once

#include <cstdint>

namespace kda::cuda {

struct MmaHeads {
  std::int64_t K = 0;  // 0: none, the f32 kernels serve the call
  std::int64_t V = 0;
  bool operator==(const MmaHeads&) const = default;
};

inline constexpr std::int64_t kMmaKeyHeads[] = {
#define KDA_MMA_K(K) K,
#include "cuda/instances.def"
};
inline constexpr MmaHeads kMmaLocals[] = {
#define KDA_MMA_LOCAL(K, V) {K, V},
#include "cuda/instances.def"
};

// Whether the chunk-local backward of these heads is one kernel.
constexpr bool has_local(MmaHeads heads) {
  for (const MmaHeads& local : kMmaLocals) {
    if (local == heads) return true;
  }
  return false;
}

// The smallest instances that hold K and V channels and have a chunk-local kernel; else, for wide
// heads, those of prep and scans alone (the chunk-local kernels of wide heads take any size).
constexpr MmaHeads mma_heads(std::int64_t K, std::int64_t V) {
  MmaHeads best;
  for (const MmaHeads& local : kMmaLocals) {
    if (local.K < K || local.V < V) continue;
    if (best.K == 0 || local.K * local.V < best.K * best.V) best = local;
  }
  if (best.K != 0) return best;
  for (const std::int64_t head : kMmaKeyHeads) {
    if (head >= K && (best.K == 0 || head < best.K)) best = {head, V};
  }
  return best;
}

}  // namespace kda::cuda
