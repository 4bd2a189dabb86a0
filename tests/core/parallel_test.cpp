#include "kda/parallel.h"

#include <gtest/gtest.h>

namespace kda {
namespace {

// CTest runs this once more with OMP_NUM_THREADS=100000.
TEST(Parallel, Default_IsBoundedWhateverTheEnvironmentSays) {
  set_num_threads(0);
  EXPECT_GE(num_threads(), 1);
  EXPECT_LE(num_threads(), 4096);
}

TEST(Parallel, Set_IsInEffectUntilTheDefaultReturns) {
  set_num_threads(0);
  const int before = num_threads();
  set_num_threads(before + 1);
  EXPECT_EQ(num_threads(), before + 1);
  set_num_threads(-1);
  EXPECT_EQ(num_threads(), before);
}

}  // namespace
}  // namespace kda
