#include "eval/eval_set.h"

#include <gtest/gtest.h>

#include <string>

#include "io/atomic_file.h"
#include "io/io_test_support.h"
#include "io/sha256.h"
#include "kda/error.h"

namespace kda::test {
namespace {

namespace fs = std::filesystem;
using eval::EvalTask;
using text::Direction;

void write(const fs::path& path, const std::string& text) { io::write_file_atomic(path, text); }

// Three pairs in two strata.
void write_set(const fs::path& folder, const std::string& name) {
  const std::string pairs[][3] = {
      {"One.", "一。", "ui"}, {"Two.", "二。", "docs"}, {"Three.", "三。", "ui"}};
  std::string en;
  std::string zh;
  std::string meta;
  for (const auto& pair : pairs) {
    en += pair[0] + "\n";
    zh += pair[1] + "\n";
    meta += io::to_hex(io::sha256(pair[0] + "\t" + pair[1])) + "\t" + pair[2] + "\tsource\n";
  }
  write(folder / (name + ".en"), en);
  write(folder / (name + ".zh"), zh);
  write(folder / (name + ".meta"), meta);
}

template <class Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(EvalSet_Folder, IsReadInBothDirections) {
  const TempFolder folder;
  fs::create_directories(folder / "eval");
  write_set(folder / "eval", "test");
  const fs::path sets = eval::find_eval_folder(folder.path());
  EXPECT_EQ(sets, folder / "eval");
  EXPECT_EQ(eval::find_eval_folder(sets), sets);
  const EvalTask forth = eval::load_eval_set(sets, "test", Direction::kEnToZh);
  EXPECT_EQ(forth.name(), "test.en2zh");
  EXPECT_EQ(forth.sources, (std::vector<std::string>{"One.", "Two.", "Three."}));
  EXPECT_EQ(forth.references, (std::vector<std::string>{"一。", "二。", "三。"}));
  EXPECT_EQ(forth.strata, (std::vector<std::string>{"ui", "docs", "ui"}));
  const EvalTask back = eval::load_eval_set(sets, "test", Direction::kZhToEn);
  EXPECT_EQ(back.sources, forth.references);
  EXPECT_EQ(back.references, forth.sources);
}

TEST(EvalSet_Defaults, AreBothFrozenSets) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(eval::default_sets({"dev", "indomain", "mini", "test"}), (Names{"test", "indomain"}));
  EXPECT_EQ(eval::default_sets({"dev", "mini", "user_dev", "user_test"}),
            (Names{"mini", "user_test"}));
  EXPECT_EQ(eval::default_sets({"dev"}), (Names{"dev"}));
}

// An edited set would still give a number, which compares with nobody's.
TEST(EvalSet_FrozenIds, MustMatch) {
  const TempFolder folder;
  write_set(folder.path(), "test");
  write(folder / "test.zh", "一。\n二！\n三。\n");
  const std::string error =
      error_of([&] { eval::load_eval_set(folder.path(), "test", Direction::kEnToZh); });
  EXPECT_TRUE(holds(error, "test.meta:2")) << error;
  EXPECT_TRUE(holds(error, "not the one that was frozen")) << error;
}

TEST(EvalSet_Faults, AreNamed) {
  const TempFolder folder;
  const auto load = [&](const std::string& set) {
    return error_of([&] { eval::load_eval_set(folder.path(), set, Direction::kEnToZh); });
  };
  EXPECT_TRUE(holds(error_of([&] { eval::find_eval_folder(folder / "none"); }), "no such folder"));
  EXPECT_TRUE(holds(error_of([&] { eval::find_eval_folder(folder.path()); }), "kda data build"));
  write_set(folder.path(), "test");
  EXPECT_TRUE(holds(load("tset"), "expected one of test"));
  EXPECT_TRUE(holds(load("../test"), "expected one of test"));
  write(folder / "test.zh", "一。\n二。\n");
  EXPECT_TRUE(holds(load("test"), "3 English, 2 Chinese and 3 of meta"));
  write(folder / "test.zh", "一。\n\xFF\n三。\n");
  EXPECT_TRUE(holds(load("test"), "test.zh:2: expected UTF-8, byte 1"));
  write_set(folder.path(), "test");
  write(folder / "test.meta", "a\tb\nc\nd\n");
  EXPECT_TRUE(holds(load("test"), "test.meta:1"));
}

TEST(EvalSet_MissingPairs, AreTold) {
  const TempFolder folder;
  const fs::path sets = folder / "eval";
  fs::create_directories(sets);
  EXPECT_EQ(eval::missing_pairs_note(sets, "test"), "");
  write(folder / "MANIFEST.json", R"({"format": 1, "frozen_evaluation": {
      "test": {"complete": false, "expected": 1000, "found": 902},
      "indomain": {"complete": true, "expected": 500, "found": 500}}})");
  EXPECT_TRUE(holds(eval::missing_pairs_note(sets, "test"), "902 of the 1000 frozen pairs"));
  EXPECT_EQ(eval::missing_pairs_note(sets, "indomain"), "");
  EXPECT_EQ(eval::missing_pairs_note(sets, "mini"), "");
  for (const char* other : {R"({"format": 1})", R"({"frozen_evaluation": [1]})",
                            R"({"frozen_evaluation": {"test": "all"}})", "[]"}) {
    write(folder / "MANIFEST.json", other);
    EXPECT_EQ(eval::missing_pairs_note(sets, "test"), "") << other;
  }
  // A real manifest counts the pairs of thousands of files.
  std::string many = R"({"frozen_evaluation": {"test": {"expected": 2, "found": 1}}, "files": {)";
  for (int i = 0; i < 3000; ++i)
    many += (i > 0 ? ", \"" : "\"") + std::to_string(i) + "\": 1";
  write(folder / "MANIFEST.json", many + "}}");
  EXPECT_TRUE(holds(eval::missing_pairs_note(sets, "test"), "1 of the 2"));
}

TEST(EvalSet_Lines, KeepWhatTheyHold) {
  const TempFolder folder;
  const fs::path path = folder / "lines.txt";
  write(path,
        "\xEF\xBB\xBF"
        "a\r\n\n b\u2028c \nlast");
  EXPECT_EQ(eval::read_lines(path), (std::vector<std::string>{"a", "", " b\u2028c ", "last"}));
  write(path, "");
  EXPECT_TRUE(eval::read_lines(path).empty());
  write(path, "\n");
  EXPECT_EQ(eval::read_lines(path), std::vector<std::string>{""});
}

TEST(EvalSet_OwnFiles, MustHaveEqualCounts) {
  const TempFolder folder;
  write(folder / "a.zh", "一\n二\n");
  write(folder / "a.en", "one\ntwo\n");
  const EvalTask task =
      eval::load_line_files(folder / "a.zh", folder / "a.en", text::Language::kEnglish);
  EXPECT_EQ(task.direction, Direction::kZhToEn);
  EXPECT_EQ(task.sources.size(), 2U);
  write(folder / "a.en", "one\n");
  const std::string error = error_of(
      [&] { eval::load_line_files(folder / "a.zh", folder / "a.en", text::Language::kEnglish); });
  EXPECT_TRUE(holds(error, "got 2 in") && holds(error, "and 1 in")) << error;
}

TEST(EvalSet_Limit, IsEvenlySpaced) {
  EvalTask task{"s", Direction::kEnToZh, {}, {}, {}};
  for (int i = 0; i < 10; ++i) {
    task.sources.push_back(std::to_string(i));
    task.references.push_back(std::to_string(i));
    task.strata.push_back(i < 5 ? "a" : "b");
  }
  const EvalTask part = eval::evenly_limited(task, 4);
  EXPECT_EQ(part.sources, (std::vector<std::string>{"0", "2", "5", "7"}));
  EXPECT_EQ(part.strata, (std::vector<std::string>{"a", "a", "b", "b"}));
  EXPECT_EQ(eval::evenly_limited(task, 0).sources.size(), 10U);
  EXPECT_EQ(eval::evenly_limited(task, 99).sources.size(), 10U);
}

}  // namespace
}  // namespace kda::test
