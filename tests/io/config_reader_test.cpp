#include "io/config_reader.h"

#include <gtest/gtest.h>

#include "io/io_test_support.h"

namespace kda::io {
namespace {

using test::expect_error;

constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;

struct Values {
  int layers = 4;
  std::int64_t big = 0;
  std::uint8_t small = 1;
  float lr = 0.5F;
  bool tied = false;
  std::string name = "default";
  std::vector<std::int64_t> list = {9};
  std::vector<std::string> words;
  std::size_t kind = 7;
};

constexpr std::string_view kKinds[] = {"standard", "safe"};

Values read(const std::string& text) {
  const Json json = parse_json(text, "test");
  Values v;
  ConfigReader r(json, "model");
  r.read_int("layers", v.layers, 1, 64);
  r.read_int("big", v.big);
  r.read_int("small", v.small);
  r.read_number("lr", v.lr, 0, 1);
  r.read_bool("tied", v.tied);
  r.read_string("name", v.name);
  r.read_ints("list", v.list, 0, 10);
  r.read_strings("words", v.words);
  if (const auto kind = r.read_choice("kind", kKinds)) v.kind = *kind;
  auto moe = r.object("moe");
  moe.read_int("experts", v.layers, 1, 8);
  moe.finish();
  r.finish();
  return v;
}

TEST(ConfigReader_Defaults, StayWhenAbsent) {
  const Values v = read("{}");
  EXPECT_EQ(v.layers, 4);
  EXPECT_EQ(v.name, "default");
  EXPECT_EQ(v.kind, 7u);
  EXPECT_EQ(v.list, std::vector<std::int64_t>{9});
}

TEST(ConfigReader_Values, AreTaken) {
  const Values v = read(R"({"big": -9223372036854775808, "small": 255, "lr": 1, "tied": true,
      "name": "中", "list": [0, 10], "words": ["a"], "kind": "safe", "moe": {"experts": 8}})");
  EXPECT_EQ(v.big, std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(v.small, 255);
  EXPECT_EQ(v.lr, 1.0F);
  EXPECT_TRUE(v.tied);
  EXPECT_EQ(v.name, "中");
  EXPECT_EQ(v.list, (std::vector<std::int64_t>{0, 10}));
  EXPECT_EQ(v.words, std::vector<std::string>{"a"});
  EXPECT_EQ(v.kind, 1u);
  EXPECT_EQ(v.layers, 8);
}

TEST(ConfigReader_Errors, NameThePathAndTheRange) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {R"({"layers": 0})", {"model.layers: expected an integer in [1, 64], got 0"}},
      {R"({"layers": 65})", {"got 65"}},
      {R"({"layers": 1.0})", {"got 1.0"}},
      {R"({"layers": "4"})", {"model.layers", "got the string \"4\""}},
      {R"({"layers": null})", {"got null"}},
      {R"({"layers": 18446744073709551615})", {"got 18446744073709551615"}},
      {R"({"big": 9223372036854775808})", {"model.big: expected an integer, got"}},
      {R"({"small": 256})", {"expected an integer in [0, 255]"}},
      {R"({"lr": 1.5})", {"model.lr: expected a number in [0.0, 1.0], got 1.5"}},
      {R"({"lr": "x"})", {"model.lr"}},
      {R"({"tied": 1})", {"model.tied: expected true or false, got 1"}},
      {R"({"name": 3})", {"model.name: expected a string, got 3"}},
      {R"({"list": 3})", {"model.list: expected an array of integers"}},
      {R"({"list": [1, 11]})", {"model.list[1]: expected an integer in [0, 10], got 11"}},
      {R"({"words": {}})", {"model.words: expected an array of strings, got an object"}},
      {R"({"words": ["a", []]})", {"model.words[1]: expected a string, got an array"}},
      {R"({"kind": "save"})", {"model.kind: expected one of \"standard\", \"safe\""}},
      {R"({"kind": 1})", {"model.kind"}},
      {R"({"moe": 3})", {"model.moe: expected an object, got 3"}},
      {R"({"moe": {"experts": 9}})", {"model.moe.experts: expected an integer in [1, 8]"}},
      {R"({"moe": {"exprts": 2}})", {"model.moe: unknown key \"exprts\"", "\"experts\"?"}},
      {R"({"layer": 2})", {"model: unknown key \"layer\"; did you mean \"layers\"?"}},
      {R"({"zzzzzzzz": 2})", {"model: unknown key \"zzzzzzzz\""}},
  };
  for (const auto& [text, parts] : cases) {
    SCOPED_TRACE(text);
    expect_error(kBad, parts, [&, t = text] { read(t); });
  }
}

TEST(ConfigReader_Small, RangeTextIsHalfOpenWhereItIs) {
  const Json json = {{"a", -1}, {"b", 5}, {"c", 5}, {"d", 2}};
  ConfigReader r(json, "");
  std::int64_t i = 0;
  double d = 0;
  expect_error(kBad, {"a: expected an integer >= 0, got -1"}, [&] { r.read_int("a", i, 0); });
  expect_error(kBad, {"c: expected a number <= 1.0"},
               [&] { r.read_number("c", d, std::numeric_limits<double>::lowest(), 1); });
  expect_error(kBad, {"d: expected a number >= 3.0"}, [&] { r.read_number("d", d, 3); });
  expect_error(kBad, {"b: my reason"}, [&] { r.fail("b", "my reason"); });
  const Json text = {{"e", "x"}};
  ConfigReader t(text, "");
  expect_error(kBad, {"e: expected a finite number"}, [&] { t.read_number("e", d); });
}

TEST(ConfigReader_Require, MissingIsAnError) {
  const Json json = {{"i", 3}, {"u", 18446744073709551615ull}, {"n", 2.5}, {"b", true}, {"s", "x"}};
  ConfigReader r(json, "cfg");
  EXPECT_TRUE(r.has("i"));
  EXPECT_FALSE(r.has("zz"));
  EXPECT_EQ(r.require_int("i"), 3);
  EXPECT_EQ(r.require_uint64("u"), 18446744073709551615ull);
  EXPECT_EQ(r.require_number("n"), 2.5);
  EXPECT_TRUE(r.require_bool("b"));
  EXPECT_EQ(r.require_string("s"), "x");
  EXPECT_EQ(r.raw("nothing"), nullptr);
  r.finish();
  expect_error(kBad, {"cfg.zz: missing"}, [&] { r.require_int("zz"); });
  expect_error(kBad, {"cfg.s: expected an integer in [0, 2^64)"}, [&] { r.require_uint64("s"); });
  expect_error(kBad, {"configuration: expected an object, got an array"}, [] {
    const Json array = Json::array();
    ConfigReader bad(array, "");
  });
}

TEST(NearestWord_Distance, FindsTyposOnly) {
  const std::vector<std::string> known = {"hidden_size", "num_layers", "lr", "vocab_size"};
  EXPECT_EQ(nearest_word("hiden_size", known), "hidden_size");
  EXPECT_EQ(nearest_word("num-layers", known), "num_layers");
  EXPECT_EQ(nearest_word("lrr", known), "lr");
  EXPECT_EQ(nearest_word("q", known), "");
  EXPECT_EQ(nearest_word("completely_different", known), "");
  EXPECT_EQ(nearest_word(std::string(100000, 'x'), known), "");
  EXPECT_EQ(nearest_word("x", {}), "");
}

}  // namespace
}  // namespace kda::io
