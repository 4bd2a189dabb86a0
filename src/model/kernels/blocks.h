// Parallel loops over rows in blocks whose size does not depend on the number of threads, so that
// sums over rows are the same bits for every thread count.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kda/parallel.h"
#include "model/kernels/storage.h"

namespace kda::model {

inline constexpr std::int64_t kBlockRows = 32;

/// f(begin, end) for blocks of rows; `row_elements` decides whether threads are worth it.
template <class F>
void for_each_block(std::int64_t rows, std::int64_t row_elements, const F& f) {
  const std::int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
  const bool threads = worth_threads(rows * row_elements);
#pragma omp parallel for schedule(static) num_threads(num_threads()) if (threads)
  for (std::int64_t b = 0; b < blocks; ++b) {
    f(b * kBlockRows, std::min(rows, (b + 1) * kBlockRows));
  }
}

/// f(begin, end, part) adds into `part` [size], zeroed before; `total` [size] gets the sum of all
/// parts in block order.
template <class T, class F>
void sum_over_blocks(std::int64_t rows, std::int64_t row_elements, std::int64_t size, T* total,
                     const F& f) {
  const std::int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
  std::vector<T> parts(static_cast<std::size_t>(blocks * size));
  for_each_block(rows, row_elements, [&](std::int64_t begin, std::int64_t end) {
    f(begin, end, parts.data() + begin / kBlockRows * size);
  });
  std::fill(total, total + size, T(0));
  for (std::int64_t b = 0; b < blocks; ++b) {
    const T* part = parts.data() + b * size;
    for (std::int64_t i = 0; i < size; ++i)
      total[i] += part[i];
  }
}

}  // namespace kda::model
