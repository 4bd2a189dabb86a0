#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <omp.h>

#include "binding/functional.h"
#include "kda/parallel.h"

namespace kda::binding {
namespace {

TEST(SetNumThreads, OneSettingForEveryPool) {
  const int before = num_threads();
  for (const int count : {3, 1, 2}) {
    set_num_threads(count);
    EXPECT_EQ(num_threads(), count);
    EXPECT_EQ(kda::num_threads(), count);
    EXPECT_EQ(at::get_num_threads(), count);
    EXPECT_EQ(omp_get_max_threads(), count);
  }
  set_num_threads(before);
}

TEST(SetNumThreads, NothingOrLess_RestoresTheDefault) {
  const int before = num_threads();
  set_num_threads(7);
  set_num_threads(0);
  EXPECT_EQ(num_threads(), before);
  EXPECT_EQ(at::get_num_threads(), before);
}

}  // namespace
}  // namespace kda::binding
