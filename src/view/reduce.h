/// Fewer cells out of many elements, for plots: means of blocks, with each block's extremes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "view/array.h"

namespace kda::view {

/// Row-major cells over the axes of an array. Cell (i, j, ...) covers elements
/// [i * block[0], (i+1) * block[0]) x [j * block[1], ...) x ...; the last ones may be smaller.
struct Cells {
  std::vector<std::int64_t> shape;  ///< cells along each axis
  std::vector<std::int64_t> block;  ///< elements along each axis of a cell, 1 = not reduced
  std::vector<std::int64_t> skip;   ///< inside a block only every skip-th element is read
  std::vector<double> mean;         ///< of the finite elements, NaN where a cell has none
  std::vector<double> low, high;    ///< their extremes, NaN likewise

  bool is_reduced() const;
};

/// At most `max_cells` cells, at least one per non-empty array; the longest axis is joined first.
/// Reads at most about kMaxElements elements.
Cells reduce(const Array& array, std::int64_t max_cells);

/// `values` as nested JSON arrays of `shape`; a number for a scalar.
std::string nested_json(const std::vector<double>& values, const std::vector<std::int64_t>& shape);

}  // namespace kda::view
