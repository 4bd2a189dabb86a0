// How the scans are cut into blocks: whole heads, 64 value columns of a head, or two blocks with 64
// columns each that share the head's prep.
#pragma once

#include <cstdint>

namespace kda::cuda::hopper {

enum class HeadForm { kWhole, kHalves, kPair };

// Relative times of a step of a block.
inline constexpr std::int64_t kWholeHeadCost = 12;
inline constexpr std::int64_t kHalfHeadCost = 8;
inline constexpr std::int64_t kPairCost = 6;

// Blocks stay on their multiprocessor and take items in turn, so the time is the number of rounds
// times the time of a step. `pairs`: whether blocks may share.
constexpr HeadForm form_of_heads(std::int64_t heads, std::int64_t num_sms, bool pairs) {
  const auto rounds = [](std::int64_t items, std::int64_t at_once) {
    return (items + at_once - 1) / at_once;
  };
  const std::int64_t whole = rounds(heads, num_sms) * kWholeHeadCost;
  const std::int64_t half = rounds(2 * heads, num_sms) * kHalfHeadCost;
  if (pairs && num_sms >= 2) {
    const std::int64_t pair = rounds(heads, num_sms / 2) * kPairCost;
    if (pair < whole && pair <= half) return HeadForm::kPair;
  }
  return whole <= half ? HeadForm::kWhole : HeadForm::kHalves;
}

}  // namespace kda::cuda::hopper
