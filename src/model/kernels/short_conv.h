/// Host kernels of the causal depthwise convolution with SiLU. See model/short_conv.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kda/types.h"

namespace kda::model {

inline constexpr int kMaxConvSize = 4;

/// y_t[c] = silu(sum_j weight[c,j] x_{t-W+1+j}[c]) inside each sequence. "compute type" is f32, or
/// f64 when storage is f64.
struct ShortConvForward {
  DType storage = DType::kF32;
  std::int64_t channels = 0;
  int width = 4;  ///< W: 2, 3 or 4
  std::span<const std::int64_t> cu_seqlens;
  const void* x = nullptr;       ///< [tokens, channels] storage type
  std::int64_t x_stride = 0;     ///< elements from row to row
  const void* weight = nullptr;  ///< [channels, W] compute type
  const void* window = nullptr;  ///< [N, W-1, channels] compute type; null = zeros
  std::int64_t window_sequence_stride = 0;
  std::int64_t window_row_stride = 0;
  void* y = nullptr;  ///< out, [tokens, channels] storage type, contiguous
};

/// Gradients without a window. dx and dweight are written.
struct ShortConvBackward {
  ShortConvForward forward;  ///< y is not used
  const void* dy = nullptr;  ///< [tokens, channels] storage type
  std::int64_t dy_stride = 0;
  void* dx = nullptr;       ///< out, [tokens, channels] storage type, contiguous
  void* dweight = nullptr;  ///< out, [channels, W] compute type
};

void short_conv_forward(const ShortConvForward& args);
void short_conv_backward(const ShortConvBackward& args);

/// A run of tokens of one sequence: the unit of parallel work. Its cut does not depend on the
/// number of threads, so neither do the sums.
struct ConvPiece {
  std::int64_t begin;   ///< first row
  std::int64_t count;   ///< rows
  std::int64_t before;  ///< rows of the same sequence before it
  std::int64_t after;   ///< rows of the same sequence after it
  std::int64_t sequence;
};

std::vector<ConvPiece> conv_pieces(std::span<const std::int64_t> cu_seqlens);

}  // namespace kda::model
