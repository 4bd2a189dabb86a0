// How the fused forward is cut into blocks: whole heads, or 64 value columns of a head.
#pragma once

#include <cstdint>

namespace kda::cuda::hopper {

// Relative time of a step: a block with all 128 value columns against one with 64.
inline constexpr std::int64_t kWholeHeadCost = 3;
inline constexpr std::int64_t kHalfHeadCost = 2;

// True: a block takes all value columns of a head. Blocks stay on their multiprocessor and take
// items in turn, so the time is the number of rounds times the time of a step.
constexpr bool whole_heads(std::int64_t heads, std::int64_t num_sms) {
  const std::int64_t whole = (heads + num_sms - 1) / num_sms * kWholeHeadCost;
  const std::int64_t half = (2 * heads + num_sms - 1) / num_sms * kHalfHeadCost;
  return whole <= half;
}

}  // namespace kda::cuda::hopper
