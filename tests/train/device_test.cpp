#include "train/device.h"

#include <gtest/gtest.h>

#include "kda/error.h"
#include "train/fixture.h"
#include "train/trainer.h"

namespace kda::train {
namespace {

using testing::error_text;

TEST(Device, NamesThatAreNone) {
  for (const char* name : {"", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:1x", "cuda:999", "CPU"}) {
    const std::string text =
        error_text(ErrorCode::kInvalidArgument, [&] { check_device_name(name); });
    EXPECT_NE(text.find("cuda:N"), std::string::npos) << text;
  }
  for (const char* name : {"auto", "cpu", "cuda", "cuda:0", "cuda:7"})
    EXPECT_NO_THROW(check_device_name(name));
}

TEST(Device, CpuIsAlwaysThere) {
  const DeviceChoice choice = choose_device("cpu");
  EXPECT_TRUE(choice.device.is_cpu());
  EXPECT_EQ(choice.text, "cpu");
  EXPECT_EQ(device_memory(choice.device).total, 0);
  synchronize(choice.device);
}

/// On a machine without GPU: asking for one is an error, whatever "auto" would do.
TEST(Device, AMissingGpuIsAnErrorNeverTheHost) {
  const DeviceChoice automatic = choose_device("auto");
  if (!automatic.device.is_cpu()) GTEST_SKIP() << "this machine has " << automatic.text;
  EXPECT_NE(automatic.text.find("auto: "), std::string::npos) << automatic.text;
  for (const char* name : {"cuda", "cuda:3"}) {
    const std::string text = error_text(ErrorCode::kUnsupported, [&] { choose_device(name); });
    EXPECT_NE(text.find(std::string("--device ") + name), std::string::npos) << text;
  }
  testing::ScratchFolder folder;
  testing::RecordingReporter reporter;
  TrainRequest request = testing::tiny_request(folder / "run", 2);
  request.options.device = "cuda";
  error_text(ErrorCode::kUnsupported, [&] { train(request, reporter); });
  EXPECT_TRUE(reporter.steps.empty());
}

TEST(Device, TheRunSaysWhatItUses) {
  testing::ScratchFolder folder;
  testing::RecordingReporter reporter;
  TrainRequest request = testing::tiny_request(folder / "run", 1);
  request.options.threads = 0;
  request.options.device = "cpu";
  train(request, reporter);
  std::string notes;
  for (const std::string& note : reporter.notes)
    notes += note + "\n";
  EXPECT_EQ(notes.find("threads            0"), std::string::npos) << notes;
  EXPECT_NE(notes.find("cpu (auto)"), std::string::npos) << notes;  // the operator's backend
  EXPECT_NE(notes.find("device     cpu"), std::string::npos) << notes;
  EXPECT_NE(notes.find("tok/param"), std::string::npos) << notes;
  EXPECT_NE(notes.find("smoke run"), std::string::npos) << notes;
}

}  // namespace
}  // namespace kda::train
