#include "view/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "view/nested.h"
#include "view/statistics.h"
#include "view/text.h"

namespace kda::view {
namespace {

std::int64_t divided_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Cells of every line along the last axis: adds the line's elements to the row of cells that
/// begins at `first`.
struct Sums {
  std::vector<double> sum;
  std::vector<std::int64_t> count;
  Cells* cells;

  void add(std::size_t cell, double value) {
    if (!std::isfinite(value)) return;
    double& low = cells->low[cell];
    double& high = cells->high[cell];
    low = count[cell] == 0 ? value : std::min(low, value);
    high = count[cell] == 0 ? value : std::max(high, value);
    sum[cell] += value;
    ++count[cell];
  }
};

}  // namespace

bool Cells::is_reduced() const {
  return std::any_of(block.begin(), block.end(), [](std::int64_t b) { return b != 1; });
}

Cells reduce(const Array& array, std::int64_t max_cells) {
  Cells cells;
  const std::size_t rank = array.rank();
  // The sample says how many elements a cell must join; all of them are then read.
  std::vector<std::int64_t> steps;
  sampled(array, std::max<std::int64_t>(max_cells, 1), steps);
  cells.block = steps;
  std::size_t total = 1;
  for (std::size_t axis = 0; axis < rank; ++axis) {
    cells.shape.push_back(divided_up(array.shape[axis], steps[axis]));
    total *= static_cast<std::size_t>(cells.shape.back());
  }
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  cells.mean.assign(total, kNan);
  cells.low.assign(total, kNan);
  cells.high.assign(total, kNan);
  Sums sums{std::vector<double>(total, 0), std::vector<std::int64_t>(total, 0), &cells};

  const Array part = sampled(array, kMaxElements, cells.skip);
  std::vector<std::int64_t> index(rank, 0);
  std::vector<double> line;
  for_each_line(part, [&](std::int64_t offset, std::int64_t stride, std::int64_t count) {
    line.resize(static_cast<std::size_t>(count));
    read_elements(part, offset, stride, line);
    std::size_t first = 0;
    for (std::size_t axis = 0; axis + 1 < rank; ++axis) {
      const std::int64_t cell = index[axis] * cells.skip[axis] / cells.block[axis];
      first = (first + static_cast<std::size_t>(cell)) *
              static_cast<std::size_t>(cells.shape[axis + 1]);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t cell = rank == 0 ? 0 : i * cells.skip[rank - 1] / cells.block[rank - 1];
      sums.add(first + static_cast<std::size_t>(cell), line[static_cast<std::size_t>(i)]);
    }
    for (std::size_t axis = rank < 2 ? 0 : rank - 1; axis-- > 0;) {
      if (++index[axis] < part.shape[axis]) break;
      index[axis] = 0;
    }
  });
  for (std::size_t cell = 0; cell < total; ++cell) {
    if (sums.count[cell] > 0) {
      cells.mean[cell] = sums.sum[cell] / static_cast<double>(sums.count[cell]);
    }
  }
  return cells;
}

std::string nested_json(const std::vector<double>& values, const std::vector<std::int64_t>& shape) {
  std::string text;
  text.reserve(values.size() * 9);
  std::size_t at = 0;
  append_nested(text, shape, [&](std::string& to) { append_number(to, values[at++]); });
  return text;
}

}  // namespace kda::view
