#include "train/profile.h"

#include <gtest/gtest.h>

#include "train/fixture.h"
#include "train/trainer.h"

namespace kda::train {
namespace {

TEST(Profile, SharesOfARun) {
  testing::ScratchFolder folder;
  testing::RecordingReporter reporter;
  TrainRequest request = testing::tiny_request(folder / "run", 9);
  request.options.profile = 3;  // 2 to warm up, 3 by stage, 3 with operators timed
  request.options.grad_accum = 2;
  train(request, reporter);
  std::string report;
  for (const std::string& note : reporter.notes) {
    if (note.starts_with("profile of 3 steps")) {
      EXPECT_TRUE(report.empty());  // once
      report = note;
    }
  }
  for (const char* part : {"data", "forward", "backward", "optimizer", "tok/s", "KDA operator"})
    EXPECT_NE(report.find(part), std::string::npos) << part << " in " << report;
  // The operator is some of the work and not all of it.
  const std::size_t at = report.find("forward and backward: ");
  ASSERT_NE(at, std::string::npos);
  const double share = std::stod(report.substr(at + std::string("forward and backward: ").size()));
  EXPECT_GT(share, 0.5);
  EXPECT_LT(share, 99.0);
}

TEST(Profile, ChangesNoResult) {
  testing::ScratchFolder folder;
  testing::RecordingReporter reporter;
  TrainRequest request = testing::tiny_request(folder / "a", 8);
  train(request, reporter);
  request.options.out = (folder / "b").string();
  request.options.profile = 2;
  train(request, reporter);
  EXPECT_EQ(testing::tensor_hashes(folder / "a/step-000008"),
            testing::tensor_hashes(folder / "b/step-000008"));
}

}  // namespace
}  // namespace kda::train
