// How the fused forward is cut into blocks: whole heads, or 64 value columns of a head.
#pragma once

#include <cstdint>

namespace kda::cuda::hopper {

// Which forms the present kernels were compared in with the oracle on a device. The others stay
// unused until they are: half heads went through the test suite; whole heads and K = V = 64 were
// compared in earlier versions and timed since (docs/measurements/2026-11-30-hopper-forward.md).
// -DKDA_HOPPER_ALL_FORMS builds with all of them, to run tests/cuda/hopper_test.cpp.
#ifdef KDA_HOPPER_ALL_FORMS
inline constexpr bool kAllForms = true;
#else
inline constexpr bool kAllForms = false;
#endif

// Whether the backward as committed was compared with the oracle on a device.
#ifdef KDA_HOPPER_BACKWARD
inline constexpr bool kBackward = true;
#else
inline constexpr bool kBackward = false;
#endif

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
