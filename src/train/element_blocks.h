/// Parameters cut into runs of elements: the unit of parallel work of the optimizers on the host.
#pragma once

#include <cstdint>
#include <vector>

#include "model/parameter.h"

namespace kda::train {

struct ElementBlock {
  std::size_t parameter;
  std::int64_t begin;
  std::int64_t count;
};

/// Elements per block: 4 streams x 32 KiB stay in the L2 cache, and a block is long enough for its
/// partial sum to be worth a double.
inline constexpr std::int64_t kBlockElements = 8192;

std::vector<ElementBlock> element_blocks(const std::vector<model::Parameter>& parameters);

}  // namespace kda::train
