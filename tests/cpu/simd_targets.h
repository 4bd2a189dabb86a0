// Runs a check once for every instruction set that was compiled and that this machine has.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "cpu/targets.h"
// clang-format off: the targets are chosen before Highway is seen
#include "hwy/targets.h"
// clang-format on

namespace kda::test {

template <typename Check>
void for_each_simd_target(const Check& check) {
  const std::vector<std::int64_t> targets = hwy::SupportedAndGeneratedTargets();
  EXPECT_FALSE(targets.empty());
  for (std::int64_t target : targets) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    check(hwy::TargetName(target));
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace kda::test
