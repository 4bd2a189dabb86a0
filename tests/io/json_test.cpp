#include "io/json.h"

#include <gtest/gtest.h>

#include "io/io_test_support.h"

namespace kda::io {
namespace {

using test::expect_error;
using test::TempFolder;

TEST(Json_Parse, KeepsOrderAndTypes) {
  const Json json = parse_json(R"({"b": 1, "a": [true, null, 2.5, "中"], "c": {"b": 1}})", "x");
  EXPECT_EQ(json.dump(), R"({"b":1,"a":[true,null,2.5,"中"],"c":{"b":1}})");
  EXPECT_EQ(parse_json("7", "x"), 7);
}

TEST(Json_Parse, RefusesWithTheName) {
  for (const std::string bad : {"", "{", "{\"a\":}", "[1,]", "{'a':1}", "nan", "1 2", "{\"a\":1}x",
                                "\"\xFF\"", "\"\\ud800\"", "1e999", "// c\n1"}) {
    expect_error(ErrorCode::kIo, {"the file", "not valid JSON"},
                 [&] { parse_json(bad, "the file"); });
  }
}

TEST(Json_Duplicates, AreRefusedAtEveryLevel) {
  expect_error(ErrorCode::kIo, {"x", "\"a\" appears twice"},
               [] { parse_json(R"({"a":1,"a":2})", "x"); });
  expect_error(ErrorCode::kIo, {"\"k\" appears twice"},
               [] { parse_json(R"({"a":[{"k":1,"k":{}}]})", "x"); });
  expect_error(ErrorCode::kIo, {"\"k\" appears twice"},
               [] { parse_sorted_json(R"({"a":[{"k":1,"k":{}}]})", "x"); });
  EXPECT_NO_THROW(parse_json(R"({"a":{"a":{"a":1}},"b":[{"a":1},{"a":2}]})", "x"));
}

TEST(Json_Limits, DepthBytesKeys) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_NO_THROW(parse_json(nested(32), "x"));
  expect_error(ErrorCode::kIo, {"nested deeper than 32"}, [&] { parse_json(nested(33), "x"); });
  expect_error(ErrorCode::kIo, {"nested deeper"}, [&] { parse_json(nested(1'000'000), "x"); });
  expect_error(ErrorCode::kIo, {"at most 3 expected"},
               [&] { parse_json("[11]", "x", {.max_bytes = 3}); });
  std::string many = "{";
  for (int i = 0; i < 1025; ++i)
    many += (i ? ",\"" : "\"") + std::to_string(i) + "\":0";
  many += "}";
  expect_error(ErrorCode::kIo, {"more than 1024 keys"}, [&] { parse_json(many, "x"); });
  EXPECT_EQ(parse_sorted_json(many, "x").size(), 1025u);
}

TEST(Json_File, RoundTrip) {
  const TempFolder folder;
  const Json value = {{"z", 1}, {"a", {1, 2}}};
  write_json_file(folder / "x.json", value);
  EXPECT_EQ(test::get(folder / "x.json").back(), '\n');
  EXPECT_EQ(read_json_file(folder / "x.json"), value);
  test::put(folder / "bad.json", "{");
  expect_error(ErrorCode::kIo, {"bad.json"}, [&] { read_json_file(folder / "bad.json"); });
}

}  // namespace
}  // namespace kda::io
