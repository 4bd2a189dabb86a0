/// What a tensor holds, in a few numbers.
#pragma once

#include <cstdint>
#include <string>

#include "view/array.h"

namespace kda::view {

struct Statistics {
  std::int64_t elements = 0;  ///< of the tensor
  std::int64_t read = 0;      ///< of them looked at: all, or an even sample of a very large tensor
  std::int64_t finite = 0;
  std::int64_t nans = 0;
  std::int64_t positive_infinities = 0;
  std::int64_t negative_infinities = 0;
  // Over the finite values; 0 when there are none.
  double min = 0;
  double max = 0;
  double mean = 0;
  double std = 0;  ///< of the population
};

/// Reads at most about kMaxElements: of larger tensors an even sample of each axis.
Statistics statistics_of(const Array& array);

/// JSON object with the fields above.
std::string to_json(const Statistics& statistics);

/// Every k-th element along each axis so that at most `max_elements` are left; `steps` gets each
/// axis's k, 1 where all are kept.
Array sampled(const Array& array, std::int64_t max_elements, std::vector<std::int64_t>& steps);

}  // namespace kda::view
