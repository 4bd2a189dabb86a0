#include "train/schedule.h"

#include <gtest/gtest.h>

#include "kda/error.h"

namespace kda::train {
namespace {

TEST(Schedule, LrAt_GoldenNumbers) {
  const CosineSchedule schedule{3e-4, 64, 250, 0.1};
  EXPECT_DOUBLE_EQ(schedule.lr_at(0), 4.6875e-6);
  EXPECT_DOUBLE_EQ(schedule.lr_at(63), 3e-4);
  EXPECT_DOUBLE_EQ(schedule.lr_at(64), 3e-4);
  EXPECT_NEAR(schedule.lr_at(157), 1.65e-4, 1e-18);
  EXPECT_NEAR(schedule.lr_at(249), 3.0019256e-5, 5e-13);
  EXPECT_DOUBLE_EQ(schedule.lr_at(250), 3e-5);
  EXPECT_DOUBLE_EQ(schedule.lr_at(100000), 3e-5);
}

TEST(Schedule, LrAt_WithoutWarmupStartsAtThePeak) {
  const CosineSchedule schedule{1e-3, 0, 10, 0.0};
  EXPECT_DOUBLE_EQ(schedule.lr_at(0), 1e-3);
  EXPECT_NEAR(schedule.lr_at(5), 5e-4, 1e-18);
}

TEST(Schedule, LrAt_AllWarmup) {
  const CosineSchedule schedule{1e-3, 10, 10, 0.1};
  EXPECT_DOUBLE_EQ(schedule.lr_at(9), 1e-3);
  EXPECT_DOUBLE_EQ(schedule.lr_at(10), 1e-4);
}

TEST(Schedule, Check_RefusesWhatMakesNoSense) {
  EXPECT_NO_THROW((CosineSchedule{1e-3, 10, 10, 1.0}.check()));
  EXPECT_THROW((CosineSchedule{0, 1, 10, 0.1}.check()), Error);
  EXPECT_THROW((CosineSchedule{1e-3, 11, 10, 0.1}.check()), Error);
  EXPECT_THROW((CosineSchedule{1e-3, -1, 10, 0.1}.check()), Error);
  EXPECT_THROW((CosineSchedule{1e-3, 0, 0, 0.1}.check()), Error);
  EXPECT_THROW((CosineSchedule{1e-3, 0, 10, 1.5}.check()), Error);
}

}  // namespace
}  // namespace kda::train
