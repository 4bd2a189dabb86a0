/// Host kernel of y = x W^T for few rows: decoding, where the time is that of reading W.
#pragma once

#include <cstdint>

namespace kda::model {

inline constexpr std::int64_t kSmallProductRows = 8;

struct SmallProduct {
  std::int64_t rows = 0;  ///< 1 .. kSmallProductRows
  std::int64_t in = 0;
  std::int64_t out = 0;
  const float* x = nullptr;  ///< [rows,in]
  std::int64_t x_stride = 0;
  const float* weight = nullptr;  ///< [out,in]
  std::int64_t weight_stride = 0;
  float* y = nullptr;  ///< out, [rows,out], contiguous
};

void small_product(const SmallProduct& args);

}  // namespace kda::model
