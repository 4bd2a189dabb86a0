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

// Time of one pass over equally long pieces, in steps' costs.
constexpr std::int64_t pass_cost(std::int64_t pieces, std::int64_t num_sms) {
  const std::int64_t whole = (pieces + num_sms - 1) / num_sms * kWholeHeadCost;
  const std::int64_t half = (2 * pieces + num_sms - 1) / num_sms * kHalfHeadCost;
  return whole < half ? whole : half;
}

// Into how many segments to cut `heads` sequences of `tokens` each. A segment's end and map take a
// pass of their own (whole heads), so it pays only where multiprocessors would have nothing to do.
inline constexpr std::int64_t kLeastSegment = 512;
inline constexpr double kSegmentTokens =
    24.0;  // time from one segment's end to the next, in tokens
constexpr int segment_count(std::int64_t heads, std::int64_t tokens, std::int64_t num_sms) {
  int best = 1;
  double best_cost = 0.85 * static_cast<double>(pass_cost(heads, num_sms));  // for two launches
  for (int segments = 2; segments <= 16 && tokens >= segments * kLeastSegment; segments *= 2) {
    const std::int64_t maps = (2 * heads * (segments - 1) + num_sms - 1) / num_sms * kWholeHeadCost;
    const double cost =
        static_cast<double>(maps + pass_cost(heads * segments, num_sms)) / segments +
        kSegmentTokens * segments / static_cast<double>(tokens);
    if (cost < best_cost) {
      best = segments;
      best_cost = cost;
    }
  }
  return best;
}

}  // namespace kda::cuda::hopper
