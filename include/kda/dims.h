/// The dimensions of one operator call, one meaning each everywhere.
#pragma once

#include <cstdint>

namespace kda {

/// Tokens per block of the state checkpoints `h_kv`, for every chunk size and backend.
inline constexpr int kStateBlockTokens = 64;

/// Largest K and V.
inline constexpr std::int64_t kMaxHeadDim = 256;

/// The seven extents; the letters of every shape comment.
struct Dims {
  std::int64_t B = 0;   ///< batch rows; 1 when packed
  std::int64_t T = 0;   ///< tokens per row (packed: tokens of all sequences together)
  std::int64_t H = 0;   ///< query/key heads
  std::int64_t HV = 0;  ///< value heads; value head hv reads query/key head hv / (HV / H)
  std::int64_t K = 0;   ///< key dim
  std::int64_t V = 0;   ///< value dim
  std::int64_t N = 0;   ///< sequences: B when dense, len(cu_seqlens) - 1 when packed

  std::int64_t G() const { return HV / H; }  ///< value heads per query/key head
};

}  // namespace kda
