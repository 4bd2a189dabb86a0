#include "train/run_folder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <stdexcept>

#include "io/atomic_file.h"
#include "kda/error.h"
#include "train/fixture.h"

namespace kda::train {
namespace {

namespace fs = std::filesystem;
using testing::error_text;
using testing::ScratchFolder;

std::int64_t make(const fs::path& run, RunPoint point, const std::string& content = "weights") {
  return commit_checkpoint(run, point, {{"step", point.step}}, [&](const fs::path& folder) {
    io::write_file_atomic(folder / "model.safetensors", content);
    return std::vector<std::string>{"model.safetensors"};
  });
}

std::vector<std::string> names(const fs::path& run) {
  std::vector<std::string> list;
  for (const auto& entry : fs::directory_iterator(run)) {
    list.push_back(entry.path().filename().string());
  }
  std::sort(list.begin(), list.end());
  return list;
}

TEST(RunFolder, Names_RoundTripAndRefuse) {
  EXPECT_EQ(folder_name({800, 0}), "step-000800");
  EXPECT_EQ(folder_name({12345678, 3}), "step-12345678-micro-3");
  for (RunPoint p : {RunPoint{0, 0}, RunPoint{800, 0}, RunPoint{7, 2}, RunPoint{12345678, 31}}) {
    EXPECT_EQ(parse_folder_name(folder_name(p)), p);
  }
  for (const char* name : {"step-", "step-x", "step--1", "best", "step-5-micro-", "step-5-micro-0",
                           ".tmp-step-000005-99", "step-5-micro-2x"}) {
    EXPECT_FALSE(parse_folder_name(name).has_value()) << name;
  }
}

TEST(RunFolder, Commit_IsCompleteAndSound) {
  ScratchFolder run;
  EXPECT_EQ(make(run.path(), {5, 0}), 7);
  const auto list = list_checkpoints(run.path(), true);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_TRUE(list[0].faults.empty());
  EXPECT_EQ(names(run.path()), std::vector<std::string>{"step-000005"});
}

TEST(RunFolder, Commit_ThatThrowsLeavesNothing) {
  ScratchFolder run;
  make(run.path(), {5, 0}, "old");
  EXPECT_THROW(commit_checkpoint(run.path(), {5, 0}, io::Json::object(),
                                 [](const fs::path& folder) -> std::vector<std::string> {
                                   io::write_file_atomic(folder / "model.safetensors", "new");
                                   throw std::runtime_error("disk on fire");
                                 }),
               std::runtime_error);
  EXPECT_EQ(names(run.path()), std::vector<std::string>{"step-000005"});
  EXPECT_EQ(io::read_file(run / "step-000005/model.safetensors"), "old");
}

TEST(RunFolder, Commit_ReplacesAnOlderOneOfTheSameName) {
  ScratchFolder run;
  make(run.path(), {5, 0}, "old");
  make(run.path(), {5, 0}, "new content");
  EXPECT_EQ(names(run.path()), std::vector<std::string>{"step-000005"});
  EXPECT_EQ(io::read_file(run / "step-000005/model.safetensors"), "new content");
  EXPECT_TRUE(list_checkpoints(run.path(), true)[0].faults.empty());
}

TEST(RunFolder, Last_IsTheNewestSoundOne) {
  ScratchFolder run;
  make(run.path(), {5, 0});
  make(run.path(), {10, 0});
  make(run.path(), {10, 2});
  EXPECT_EQ(last_checkpoint(run.path(), {})->point, (RunPoint{10, 2}));

  // One byte short, a flipped byte, no manifest: each is left out with its reason.
  fs::resize_file(run / "step-000010-micro-2/model.safetensors", 6);
  testing::write_text(run / "step-000010/model.safetensors", "weightz");
  std::vector<std::string> told;
  const auto last = last_checkpoint(run.path(), [&](const CheckpointFolder& folder) {
    told.push_back(folder.path.filename().string() + ": " + folder.faults.front());
  });
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(last->point, (RunPoint{5, 0}));
  ASSERT_EQ(told.size(), 2u);
  EXPECT_NE(told[0].find("step-000010-micro-2"), std::string::npos);
  EXPECT_NE(told[1].find("model.safetensors"), std::string::npos) << told[1];

  fs::remove(run / "step-000005/manifest.json");
  EXPECT_FALSE(last_checkpoint(run.path(), {}).has_value());
}

TEST(RunFolder, Prune_KeepsTheLastAndTheBest) {
  ScratchFolder run;
  for (std::int64_t step : {1, 2, 3, 4, 5})
    make(run.path(), {step, 0});
  EXPECT_EQ(prune_checkpoints(run.path(), {5, 0}, 2, 2),
            (std::vector<std::string>{"step-000003", "step-000001"}));
  EXPECT_EQ(names(run.path()),
            (std::vector<std::string>{"step-000002", "step-000004", "step-000005"}));
}

TEST(RunFolder, Prune_ABrokenLaterOneDoesNotPushOutASoundOne) {
  ScratchFolder run;
  for (std::int64_t step : {3, 4, 9})
    make(run.path(), {step, 0});
  fs::remove(run / "step-000009" / "manifest.json");
  EXPECT_EQ(prune_checkpoints(run.path(), {4, 0}, 1, std::nullopt),
            (std::vector<std::string>{"step-000003"}));
  EXPECT_EQ(names(run.path()), (std::vector<std::string>{"step-000004", "step-000009"}));
}

TEST(RunFolder, Leftovers_AreRemovedNothingElseIs) {
  ScratchFolder run;
  make(run.path(), {5, 0});
  fs::create_directories(run / ".tmp-step-000006-4711");
  testing::write_text(run / ".tmp-step-000006-4711/model.safetensors", "half");
  testing::write_text(run / "notes.txt", "mine");
  remove_leftovers(run.path());
  EXPECT_EQ(names(run.path()), (std::vector<std::string>{"notes.txt", "step-000005"}));
}

TEST(RunFolder, Resolve_RunLastBestAndFolder) {
  ScratchFolder run;
  make(run.path(), {5, 0});
  make(run.path(), {10, 0});
  write_best(run.path(), {5, 3.25, {}});
  EXPECT_EQ(resolve_checkpoint(run.path()).point, (RunPoint{10, 0}));
  EXPECT_EQ(resolve_checkpoint(run.path().string() + "/").point, (RunPoint{10, 0}));
  EXPECT_EQ(resolve_checkpoint(run / "last").point, (RunPoint{10, 0}));
  EXPECT_EQ(resolve_checkpoint(run / "best").point, (RunPoint{5, 0}));
  EXPECT_EQ(resolve_checkpoint(run / "step-000005").point, (RunPoint{5, 0}));
  EXPECT_DOUBLE_EQ(read_best(run.path())->heldout_loss, 3.25);
}

TEST(RunFolder, Resolve_SaysWhatIsWrong) {
  ScratchFolder run;
  const auto text = [&](const fs::path& path) {
    return error_text(ErrorCode::kIo, [&] { resolve_checkpoint(path); });
  };
  EXPECT_NE(text(run / "nowhere").find("no such"), std::string::npos);
  EXPECT_NE(text(run.path()).find("no sound checkpoint"), std::string::npos);
  make(run.path(), {5, 0});
  EXPECT_NE(text(run / "best").find("no best checkpoint"), std::string::npos);
  fs::resize_file(run / "step-000005/model.safetensors", 1);
  EXPECT_NE(text(run / "step-000005").find("broken checkpoint"), std::string::npos);
  fs::remove(run / "step-000005/manifest.json");
  EXPECT_NE(text(run / "step-000005").find("manifest.json is missing"), std::string::npos);
}

TEST(RunFolder, Best_DamagedFileIsAnError) {
  ScratchFolder run;
  testing::write_text(run / "best.json", "{\"step\": ");
  EXPECT_THROW(read_best(run.path()), Error);
  testing::write_text(run / "best.json", "{\"step\": -4, \"heldout_loss\": 1}");
  EXPECT_THROW(read_best(run.path()), Error);
}

TEST(RunFolder, Lock_SecondTrainerIsRefused) {
  ScratchFolder run;
  const RunLock lock(run.path());
  const std::string text = error_text(ErrorCode::kIo, [&] { RunLock second(run.path()); });
  EXPECT_NE(text.find("in use"), std::string::npos) << text;
}

}  // namespace
}  // namespace kda::train
