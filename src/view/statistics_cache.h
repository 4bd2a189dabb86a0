/// Statistics of whole tensors, computed once: a slider asks for many slices of one tensor.
#pragma once

#include <map>
#include <mutex>

#include "io/safetensors.h"
#include "view/statistics.h"

namespace kda::view {

/// Safe from several threads; two that ask for the same tensor at once both compute it.
class StatisticsCache {
 public:
  Statistics of(const io::StTensor& tensor) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = known_.find(&tensor);
      if (found != known_.end()) return found->second;
    }
    const Statistics statistics = statistics_of(array_of(tensor));
    const std::lock_guard lock(mutex_);
    return known_.try_emplace(&tensor, statistics).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<const io::StTensor*, Statistics> known_;
};

}  // namespace kda::view
