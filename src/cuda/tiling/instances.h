// The head sizes of instances.def as numbers: which one a size is padded to.
#pragma once

#include <cstdint>

namespace kda::cuda {

inline constexpr std::int64_t kMmaHeads[] = {
#define KDA_MMA_K(K) K,
#include "cuda/instances.def"
};

// Smallest instance that holds `dim` channels; 0: none, the f32 kernels serve it.
constexpr std::int64_t mma_head(std::int64_t dim) {
  std::int64_t best = 0;
  for (const std::int64_t head : kMmaHeads) {
    if (head >= dim && (best == 0 || head < best)) best = head;
  }
  return best;
}

}  // namespace kda::cuda
