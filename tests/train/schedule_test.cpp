#include "train/schedule.h"

#include <gtest/gtest.h>

#include <string>

#include "kda/error.h"

namespace kda::train {
namespace {

TEST(Schedule, LrAt_GoldenNumbers) {
  const Schedule schedule{3e-4, 64, 250, 0.1};
  EXPECT_DOUBLE_EQ(schedule.lr_at(0), 4.6875e-6);
  EXPECT_DOUBLE_EQ(schedule.lr_at(63), 3e-4);
  EXPECT_DOUBLE_EQ(schedule.lr_at(64), 3e-4);
  EXPECT_NEAR(schedule.lr_at(157), 1.65e-4, 1e-18);
  EXPECT_NEAR(schedule.lr_at(249), 3.0019256e-5, 5e-13);
  EXPECT_DOUBLE_EQ(schedule.lr_at(250), 3e-5);
  EXPECT_DOUBLE_EQ(schedule.lr_at(100000), 3e-5);
}

TEST(Schedule, LrAt_WithoutWarmupStartsAtThePeak) {
  const Schedule schedule{1e-3, 0, 10, 0.0};
  EXPECT_DOUBLE_EQ(schedule.lr_at(0), 1e-3);
  EXPECT_NEAR(schedule.lr_at(5), 5e-4, 1e-18);
}

TEST(Schedule, LrAt_AllWarmup) {
  const Schedule schedule{1e-3, 10, 10, 0.1};
  EXPECT_DOUBLE_EQ(schedule.lr_at(9), 1e-3);
  EXPECT_DOUBLE_EQ(schedule.lr_at(10), 1e-4);
}

TEST(Schedule, Check_RefusesWhatMakesNoSense) {
  EXPECT_NO_THROW((Schedule{1e-3, 10, 10, 1.0}.check()));
  EXPECT_THROW((Schedule{0, 1, 10, 0.1}.check()), Error);
  EXPECT_THROW((Schedule{1e-3, 11, 10, 0.1}.check()), Error);
  EXPECT_THROW((Schedule{1e-3, -1, 10, 0.1}.check()), Error);
  EXPECT_THROW((Schedule{1e-3, 0, 0, 0.1}.check()), Error);
  EXPECT_THROW((Schedule{1e-3, 0, 10, 1.5}.check()), Error);
}

TEST(Schedule, Wsd_HoldsThePeakThenDecays) {
  Schedule schedule{1e-3, 4, 100, 0.1, ScheduleKind::kWsd, 20};
  EXPECT_NO_THROW(schedule.check());
  EXPECT_DOUBLE_EQ(schedule.lr_at(0), 2.5e-4);
  for (const std::int64_t step : {3, 4, 50, 79, 80})
    EXPECT_DOUBLE_EQ(schedule.lr_at(step), 1e-3) << step;
  EXPECT_NEAR(schedule.lr_at(90), 5.5e-4, 1e-18);  // half way: the mean of peak and floor
  EXPECT_LT(schedule.lr_at(99), schedule.lr_at(98));
  EXPECT_DOUBLE_EQ(schedule.lr_at(100), 1e-4);
  schedule.decay_steps = 97;  // longer than what the warm-up leaves
  EXPECT_THROW(schedule.check(), Error);
}

TEST(Schedule, Names) {
  EXPECT_EQ(schedule_from("wsd"), ScheduleKind::kWsd);
  EXPECT_EQ(schedule_from(name_of(ScheduleKind::kCosine)), ScheduleKind::kCosine);
  EXPECT_THROW(schedule_from("linear"), Error);
}

/// From `step` on the rate never rises, and it starts where it was.
void expect_monotone(const Schedule& before, const Schedule& after, std::int64_t step) {
  EXPECT_DOUBLE_EQ(after.lr_at(step), before.lr_at(step)) << step;
  for (std::int64_t s = step; s < after.total_steps + 5; ++s)
    EXPECT_LE(after.lr_at(s + 1), after.lr_at(s) * (1 + 1e-15)) << s;
  EXPECT_NEAR(after.lr_at(after.total_steps), after.base_lr * after.floor_ratio, 1e-18);
}

TEST(Schedule, Continued_AnotherLengthNeverRaisesTheRate) {
  for (const ScheduleKind kind : {ScheduleKind::kCosine, ScheduleKind::kWsd}) {
    const Schedule before{1e-3, 10, 100, 0.1, kind, 30};
    for (const std::int64_t step : {10, 40, 71, 90, 99}) {
      for (const std::int64_t total : {100, 110, 400}) {
        Schedule next = before;
        next.total_steps = total;
        SCOPED_TRACE(std::to_string(step) + " of " + std::to_string(total));
        expect_monotone(before, continued_schedule(before, next, step), step);
      }
    }
    Schedule shorter = before;
    shorter.total_steps = 60;
    expect_monotone(before, continued_schedule(before, shorter, 45), 45);
  }
  // A run that has come to its end stays on the floor.
  const Schedule done{1e-3, 10, 100, 0.1};
  Schedule longer = done;
  longer.total_steps = 300;
  expect_monotone(done, continued_schedule(done, longer, 100), 100);
}

TEST(Schedule, Continued_TheSameLengthChangesNothing) {
  const Schedule before{1e-3, 10, 100, 0.1};
  EXPECT_FALSE(continued_schedule(before, before, 50).anchor);
  Schedule anchored = before;
  anchored.anchor = LrAnchor{30, 7e-4};
  const Schedule after = continued_schedule(anchored, before, 50);  // options carry no anchor
  EXPECT_EQ(after.anchor, anchored.anchor);
  for (std::int64_t s = 30; s <= 101; ++s)
    EXPECT_EQ(after.lr_at(s), anchored.lr_at(s));
}

TEST(Schedule, Continued_InTheWarmupAndOnThePlateauNothingJumps) {
  const Schedule cosine{1e-3, 10, 100, 0.1};
  Schedule longer = cosine;
  longer.total_steps = 200;
  EXPECT_FALSE(continued_schedule(cosine, longer, 5).anchor);
  const Schedule wsd{1e-3, 10, 100, 0.1, ScheduleKind::kWsd, 20};
  longer = wsd;
  longer.total_steps = 200;
  EXPECT_FALSE(continued_schedule(wsd, longer, 50).anchor);
}

}  // namespace
}  // namespace kda::train
