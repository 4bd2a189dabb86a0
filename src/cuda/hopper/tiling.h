// How the scans of K = V = 128 are cut into blocks: a whole head each, or two blocks with 64 value
// columns each that share the head's prep.
#pragma once

#include <cstdint>

namespace kda::cuda::hopper {

enum class HeadForm { kWhole, kPair };

// Relative times of a step of a block.
inline constexpr std::int64_t kWholeHeadCost = 16;
inline constexpr std::int64_t kPairCost = 10;

// Blocks stay on their multiprocessor and take items in turn, so the time is the number of rounds
// times the time of a step.
constexpr HeadForm form_of_heads(std::int64_t heads, std::int64_t num_sms) {
  const auto rounds = [](std::int64_t items, std::int64_t at_once) {
    return (items + at_once - 1) / at_once;
  };
  if (num_sms < 2) return HeadForm::kWhole;
  const std::int64_t whole = rounds(heads, num_sms) * kWholeHeadCost;
  const std::int64_t pair = rounds(heads, num_sms / 2) * kPairCost;
  return pair < whole ? HeadForm::kPair : HeadForm::kWhole;
}

}  // namespace kda::cuda::hopper
