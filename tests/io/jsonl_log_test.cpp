#include "io/jsonl_log.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "io/io_test_support.h"

namespace kda::io {
namespace {

using test::expect_error;
using test::get;
using test::put;
using test::TempFolder;

TEST(JsonlLog_Append, OneLineEach) {
  const TempFolder folder;
  const auto path = folder / "m.jsonl";
  {
    JsonlLog log(path);
    log.append({{"step", 1}, {"loss", 2.5}, {"text", "line\nbreak 中"}});
    log.append({{"step", 2}, {"loss", std::nan("")}});
    log.sync();
  }
  {
    JsonlLog log(path);
    EXPECT_EQ(log.recovery().kept_lines, 2u);
    const double inf = std::numeric_limits<double>::infinity();
    log.append({{"step", 3}, {"v", {1.0, inf, {{"w", -inf}}}}});
  }
  EXPECT_EQ(get(path),
            "{\"step\":1,\"loss\":2.5,\"text\":\"line\\nbreak 中\"}\n"
            "{\"step\":2,\"loss\":\"nan\"}\n"
            "{\"step\":3,\"v\":[1.0,\"inf\",{\"w\":\"-inf\"}]}\n");
  EXPECT_EQ(read_jsonl(path).size(), 3u);
}

TEST(JsonlLog_BadText, IsReplacedNotThrown) {
  const TempFolder folder;
  JsonlLog log(folder / "m.jsonl");
  log.append({{"sample", "half \xE4\xB8"}});
  EXPECT_EQ(read_jsonl(folder / "m.jsonl").size(), 1u);
}

TEST(JsonlLog_TornLine, IsRemoved) {
  const TempFolder folder;
  const auto path = folder / "m.jsonl";
  put(path, "{\"step\":1}\n{\"step\":2}\n{\"st");
  EXPECT_EQ(read_jsonl(path).size(), 2u);
  JsonlLog log(path);
  EXPECT_EQ(log.recovery().kept_lines, 2u);
  EXPECT_EQ(log.recovery().dropped_torn_bytes, 4u);
  EXPECT_EQ(get(path), "{\"step\":1}\n{\"step\":2}\n");
}

TEST(JsonlLog_TornZeros, AreRemoved) {
  const TempFolder folder;  // what a power cut can leave where a line was being written
  const auto path = folder / "m.jsonl";
  put(path, "{\"step\":1}\n" + std::string(100, '\0'));
  JsonlLog log(path);
  EXPECT_EQ(log.recovery().dropped_torn_bytes, 100u);
  EXPECT_EQ(get(path), "{\"step\":1}\n");
}

TEST(JsonlLog_Resume, DropsTheStepsThatRunAgain) {
  const TempFolder folder;
  const auto path = folder / "m.jsonl";
  put(path,
      "{\"event\":\"start\"}\n{\"step\":1}\n{\"step\":2}\n{\"event\":\"eval\"}\n{\"step\":3}\n"
      "{\"event\":\"late\"}\n{\"step\":4}\n");
  {
    JsonlLog log(path, 2);
    EXPECT_EQ(log.recovery().kept_lines, 4u);
    EXPECT_EQ(log.recovery().dropped_lines, 3u);
    log.append({{"step", 3}});
  }
  EXPECT_EQ(
      get(path),
      "{\"event\":\"start\"}\n{\"step\":1}\n{\"step\":2}\n{\"event\":\"eval\"}\n{\"step\":3}\n");
  JsonlLog all(path, 99);
  EXPECT_EQ(all.recovery().dropped_lines, 0u);
}

TEST(JsonlLog_ResumeAtZero, EmptiesTheSteps) {
  const TempFolder folder;
  put(folder / "m.jsonl", "{\"step\":1}\n{\"step\":2}\n");
  JsonlLog log(folder / "m.jsonl", 0);
  EXPECT_EQ(get(folder / "m.jsonl"), "");
}

TEST(JsonlLog_Resume, AStepOverInt64IsLateToo) {
  const TempFolder folder;
  put(folder / "m.jsonl", "{\"step\":1}\n{\"step\":18446744073709551615}\n{\"step\":2}\n");
  JsonlLog log(folder / "m.jsonl", 2);
  EXPECT_EQ(log.recovery().dropped_lines, 2u);
  EXPECT_EQ(get(folder / "m.jsonl"), "{\"step\":1}\n");
}

TEST(JsonlLog_Damage, InTheMiddleIsAnError) {
  const TempFolder folder;
  const auto path = folder / "m.jsonl";
  put(path, "{\"step\":1}\n{\"st\n{\"step\":3}\n");
  expect_error(ErrorCode::kIo, {"m.jsonl", "line 2"}, [&] { JsonlLog log(path); });
  expect_error(ErrorCode::kIo, {"line 2"}, [&] { read_jsonl(path); });
  put(path, "[1]\n");
  expect_error(ErrorCode::kIo, {"line 1", "not an object"}, [&] { JsonlLog log(path); });
  expect_error(ErrorCode::kIo, {"cannot open"}, [&] { JsonlLog log(folder / "none/x"); });
}

}  // namespace
}  // namespace kda::io
