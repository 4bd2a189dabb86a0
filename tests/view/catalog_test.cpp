#include "view/catalog.h"

#include "io/json.h"
#include "view_test_support.h"

namespace kda::view {
namespace {

using test::expect_error;
using test::put;
using test::TempFolder;
using testing::kTraceText;
using testing::write_counting;

std::vector<std::string> labels_of(const Catalog& catalog) {
  std::vector<std::string> labels;
  for (const OpenFile& file : catalog.files())
    labels.push_back(file.label);
  return labels;
}

TEST(Catalog, OneFile_KeysAreNames) {
  const TempFolder folder;
  write_counting(folder / "a.safetensors", {{"w", {2, 3}}, {"b", {}}});
  const Catalog catalog({folder / "a.safetensors"});
  ASSERT_EQ(catalog.tensors().size(), 2U);
  ASSERT_NE(catalog.find_tensor("w"), nullptr);
  EXPECT_EQ(catalog.find_tensor("w")->tensor->shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(catalog.find_tensor("a.safetensors:w"), nullptr);
}

TEST(Catalog, SeveralFiles_KeysHaveLabelsAndLabelsDiffer) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "x");
  std::filesystem::create_directories(folder / "y");
  write_counting(folder / "x/a.safetensors", {{"w", {2}}});
  write_counting(folder / "y/a.safetensors", {{"w", {3}}});
  const Catalog catalog({folder / "x/a.safetensors", folder / "y/a.safetensors"});
  EXPECT_EQ(labels_of(catalog), (std::vector<std::string>{"a.safetensors", "a.safetensors (2)"}));
  ASSERT_NE(catalog.find_tensor("a.safetensors (2):w"), nullptr);
  EXPECT_EQ(catalog.find_tensor("a.safetensors (2):w")->tensor->shape[0], 3);
}

TEST(Catalog, Run_IsItsMetricsAndItsNewestCheckpoint) {
  const TempFolder folder;
  for (const char* name : {"run/step-000900", "run/step-001000", "run/step-001000-micro-2",
                           "run/step-bad", "run/step-2000"}) {
    std::filesystem::create_directories(folder / name);
  }
  put(folder / "run/metrics.jsonl", "{\"step\": 1}\n");
  write_counting(folder / "run/step-000900/model.safetensors", {{"old", {1}}});
  write_counting(folder / "run/step-001000/model.safetensors", {{"older", {1}}});
  write_counting(folder / "run/step-001000-micro-2/model.safetensors", {{"new", {1}}});
  write_counting(folder / "run/step-bad/model.safetensors", {{"bad", {1}}});
  const Catalog catalog({folder / "run/"});
  EXPECT_EQ(labels_of(catalog),
            (std::vector<std::string>{"run/metrics.jsonl", "run/step-001000-micro-2"}));
  EXPECT_NE(catalog.find_tensor("new"), nullptr);
}

TEST(Catalog, ShardedCheckpoint_IsOneSet) {
  const TempFolder folder;
  write_counting(folder / "1.safetensors", {{"a", {1}}});
  write_counting(folder / "2.safetensors", {{"b", {2}}});
  io::write_json_file(folder / "model.safetensors.index.json",
                      {{"metadata", io::Json::object()},
                       {"weight_map", {{"a", "1.safetensors"}, {"b", "2.safetensors"}}}});
  for (const auto& path : {folder.path(), folder / "model.safetensors.index.json"}) {
    const Catalog catalog({path});
    EXPECT_NE(catalog.find_tensor("a"), nullptr);
    EXPECT_NE(catalog.find_tensor("b"), nullptr);
  }
}

TEST(Catalog, RawFiles_AreTheNamedOnesOnly) {
  const TempFolder folder;
  write_counting(folder / "a.safetensors", {{"w", {1}}});
  put(folder / "secret.txt", "no");
  put(folder / "t.json", kTraceText);
  const Catalog catalog({folder / "a.safetensors", folder / "t.json"});
  ASSERT_NE(catalog.find_raw("a.safetensors"), nullptr);
  EXPECT_EQ(*catalog.find_raw("a.safetensors"), folder / "a.safetensors");
  EXPECT_NE(catalog.find_raw("t.json"), nullptr);
  for (const char* name : {"secret.txt", "../a.safetensors", "./a.safetensors", "/etc/passwd", "",
                           "a.safetensors/", "a.safetensors/../secret.txt"}) {
    EXPECT_EQ(catalog.find_raw(name), nullptr) << name;
  }
}

TEST(Catalog, BadPaths_AreOneClearError) {
  const TempFolder folder;
  const auto refused = [&](const std::vector<std::filesystem::path>& paths, const char* part) {
    expect_error(ErrorCode::kIo, {part, paths[0].filename().string()}, [&] { Catalog c(paths); });
  };
  refused({folder / "none.safetensors"}, "no such file");
  put(folder / "text.txt", "x");
  refused({folder / "text.txt"}, "expected a .safetensors file");
  std::filesystem::create_directories(folder / "empty");
  refused({folder / "empty"}, "none of model.safetensors");
  put(folder / "cut.safetensors", "\x08\x00\x00");
  refused({folder / "cut.safetensors"}, "not a valid safetensors file");
  put(folder / "other.json", "{\"a\": 1}");
  refused({folder / "other.json"}, "not a trace");
  put(folder / "broken.json", "{\"a\": ");
  refused({folder / "broken.json"}, "not valid JSON");
  std::filesystem::create_directories(folder / "dir.safetensors");
  refused({folder / "dir.safetensors"}, "none of model.safetensors");
  write_counting(folder / "later.safetensors", {{"a", {2}}},
                 {{"format", "kda-extract"}, {"version", "9"}});
  refused({folder / "later.safetensors"}, "version: expected 1, got \"9\"");
  expect_error(ErrorCode::kInvalidArgument, {"1 to 64 files"}, [] { Catalog c({}); });
}

}  // namespace
}  // namespace kda::view
