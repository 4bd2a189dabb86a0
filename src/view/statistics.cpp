#include "view/statistics.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "view/text.h"

namespace kda::view {
namespace {

void add(Statistics& s, double value, double shift, double& sum, double& squares) {
  if (std::isnan(value)) {
    ++s.nans;
  } else if (std::isinf(value)) {
    ++(value > 0 ? s.positive_infinities : s.negative_infinities);
  } else {
    s.min = s.finite == 0 ? value : std::min(s.min, value);
    s.max = s.finite == 0 ? value : std::max(s.max, value);
    ++s.finite;
    sum += value - shift;
    squares += (value - shift) * (value - shift);
  }
}

}  // namespace

Array sampled(const Array& array, std::int64_t max_elements, std::vector<std::int64_t>& steps) {
  steps.assign(array.rank(), 1);
  std::vector<Slice> slices;
  for (const std::int64_t dim : array.shape)
    slices.push_back({0, dim, 1, false});
  Array out = array;
  while (out.num_elements() > max_elements) {
    // The axis with the most left gives way first, so that no axis is thinned to nothing.
    const auto longest = std::max_element(out.shape.begin(), out.shape.end());
    const auto axis = static_cast<std::size_t>(longest - out.shape.begin());
    std::int64_t& step = steps[axis];
    const double excess =
        static_cast<double>(out.num_elements()) / static_cast<double>(max_elements);
    // Grows by at least one and at most twofold: another axis may be the longest then.
    step = static_cast<std::int64_t>(
        std::ceil(static_cast<double>(step) * std::clamp(excess, 1.01, 2.0)));
    const std::int64_t size = array.shape[axis];
    slices[axis] = {0, (size + step - 1) / step, step, false};
    out = sliced(array, slices);
  }
  return out;
}

Statistics statistics_of(const Array& array) {
  Statistics s;
  s.elements = array.num_elements();
  std::vector<std::int64_t> steps;
  const Array part = sampled(array, kMaxElements, steps);
  s.read = part.num_elements();
  std::vector<double> line;
  // The first finite value: sums about it lose no digits to a large mean.
  double shift = 0;
  bool has_shift = false;
  double sum = 0;
  double squares = 0;
  for_each_line(part, [&](std::int64_t offset, std::int64_t stride, std::int64_t count) {
    line.resize(static_cast<std::size_t>(count));
    read_elements(part, offset, stride, line);
    for (const double value : line) {
      if (!has_shift && std::isfinite(value)) {
        shift = value;
        has_shift = true;
      }
      add(s, value, shift, sum, squares);
    }
  });
  if (s.finite > 0) {
    const auto n = static_cast<double>(s.finite);
    s.mean = shift + sum / n;
    s.std = std::sqrt(std::max(0.0, squares / n - (sum / n) * (sum / n)));
  }
  return s;
}

std::string to_json(const Statistics& s) {
  std::string text;
  const auto whole = [&](const char* name, std::int64_t value) {
    text += text.empty() ? "{\"" : ", \"";
    text += name;
    text += "\": ";
    append_number(text, value);
  };
  const auto real = [&](const char* name, double value) {
    text += ", \"";
    text += name;
    text += "\": ";
    append_number(text, s.finite == 0 ? std::nan("") : value);
  };
  whole("elements", s.elements);
  whole("read", s.read);
  whole("nans", s.nans);
  whole("positive_infinities", s.positive_infinities);
  whole("negative_infinities", s.negative_infinities);
  real("min", s.min);
  real("max", s.max);
  real("mean", s.mean);
  real("std", s.std);
  return text + "}";
}

}  // namespace kda::view
