// What a test measured, for tables made of test results (scripts/status_table.py).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

namespace kda::test {

// The largest difference that the running test reports becomes its property "max_difference" in
// XML and JSON results. Relative to the largest value expected, or absolute where that is below 1.
inline void record_difference(double difference) {
  static const ::testing::TestInfo* last = nullptr;
  static double largest = 0.0;
  const ::testing::TestInfo* running = ::testing::UnitTest::GetInstance()->current_test_info();
  if (running == nullptr) return;
  largest = running == last ? std::max(largest, difference) : difference;
  last = running;
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", largest);
  ::testing::Test::RecordProperty("max_difference", text);
}

}  // namespace kda::test
