#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "io/io_test_support.h"

namespace kda::io {
namespace {

using test::expect_error;
using test::TempFolder;

/// A file with this header and `data_bytes` bytes of data; the length field says what it must.
std::string file_with(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, '\x01');
}

SafetensorsFile parse(const std::string& file) {
  return SafetensorsFile::parse(test::bytes_of(file), "test");
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"("t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}";
}

TEST(Safetensors_Parse, AllDtypes) {
  const std::pair<const char*, std::size_t> dtypes[] = {
      {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},
      {"I32", 4}, {"I16", 2}, {"I8", 1},  {"U8", 1},   {"BOOL", 1}};
  for (const auto& [name, size] : dtypes) {
    const auto file = file_with("{" +
                                    tensor("\"" + std::string(name) + "\"", "[2,3]",
                                           "[0," + std::to_string(6 * size) + "]") +
                                    "}",
                                6 * size);
    const auto parsed = parse(file);
    const StTensor& t = parsed.info("t");
    EXPECT_EQ(name_of(t.dtype), name);
    EXPECT_EQ(size_of(t.dtype), size);
    EXPECT_EQ(t.shape, (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(t.num_elements(), 6);
    EXPECT_EQ(t.data.size(), 6 * size);
  }
}

TEST(Safetensors_Parse, ScalarsEmptiesMetadataAndOrder) {
  const std::string header = R"({"__metadata__":{"format":"pt","a":"中"},)"
                             R"("z":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                             R"("e":{"dtype":"F32","shape":[3,0],"data_offsets":[4,4]},)"
                             R"("a":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}}   )";
  const std::string bytes = file_with(header, 6);
  const auto file = parse(bytes);
  EXPECT_EQ(file.names(), (std::vector<std::string>{"z", "e", "a"}));
  EXPECT_EQ(file.info("z").num_elements(), 1);
  EXPECT_EQ(file.info("e").num_elements(), 0);
  EXPECT_EQ(file.metadata().at("a"), "中");
  EXPECT_TRUE(file.contains("a"));
  EXPECT_FALSE(file.contains("b"));
  EXPECT_EQ(file.what(), "test");
  expect_error(ErrorCode::kIo, {"test", "no tensor \"b\""}, [&] { file.info("b"); });
  const std::string none = file_with("{}", 0);
  EXPECT_TRUE(parse(none).names().empty());
}

TEST(Safetensors_Hostile, EachIsRefusedWithAReason) {
  const auto one = [](const std::string& t, std::size_t bytes) {
    return file_with("{" + t + "}", bytes);
  };
  std::string huge = file_with("{}", 0);
  const std::uint64_t lengths[] = {std::uint64_t{1} << 63, (std::uint64_t{1} << 63) - 1,
                                   ~std::uint64_t{0}, 100'000'001};
  for (const auto length : lengths) {
    std::memcpy(huge.data(), &length, 8);
    expect_error(ErrorCode::kIo, {"test", "at most 100000000"}, [&] { parse(huge); });
  }
  const std::uint64_t three = 3;
  std::memcpy(huge.data(), &three, 8);
  expect_error(ErrorCode::kIo, {"only 2 follow"}, [&] { parse(huge); });

  const std::string deep = "{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  const std::pair<std::string, std::string> cases[] = {
      {"", "0 bytes, at least 8"},
      {"1234567", "7 bytes, at least 8"},
      {std::string(8, '\0'), "does not begin with '{'"},
      {file_with("[]", 0), "does not begin with '{'"},
      {file_with(" {}", 0), "does not begin with '{'"},
      {file_with("{", 0), "not valid JSON"},
      {file_with("{} x", 0), "not valid JSON"},
      {file_with("{\"\xFF\":1}", 0), "not valid JSON"},
      {file_with(deep, 0), "nested deeper"},
      {file_with("{}", 1), "1 bytes after the last tensor"},
      {file_with("{\"t\":3}", 0), "expected an object"},
      {file_with("{\"t\":{}}", 0), "dtype, shape and data_offsets"},
      {file_with(R"({"t":{"dtype":"F32","shape":[1]}})", 4), "dtype, shape and data_offsets"},
      {file_with(R"({"t":{"dtype":"F32","shape":[],"data_offsets":[0,4],"x":1}})", 4),
       "unknown key \"x\""},
      {one(tensor("\"F4\"", "[1]", "[0,4]"), 4), "dtype \"F4\" is not supported"},
      {one(tensor("\"f32\"", "[1]", "[0,4]"), 4), "not supported"},
      {one(tensor("7", "[1]", "[0,4]"), 4), "not supported"},
      {one(tensor("\"F32\"", "1", "[0,4]"), 4), "shape: expected an array"},
      {one(tensor("\"F32\"", "[-1]", "[0,4]"), 4), "[0, 2^63)"},
      {one(tensor("\"F32\"", "[1.0]", "[0,4]"), 4), "[0, 2^63)"},
      {one(tensor("\"F32\"", "[\"1\"]", "[0,4]"), 4), "[0, 2^63)"},
      {one(tensor("\"F32\"", "[18446744073709551615]", "[0,4]"), 4), "[0, 2^63)"},
      {one(tensor("\"F32\"", "[4294967296,4294967296]", "[0,4]"), 4), "more than 2^63 bytes"},
      {one(tensor("\"U8\"", "[9223372036854775807,2]", "[0,4]"), 4), "more than 2^63 bytes"},
      {one(tensor("\"F32\"", "[4611686018427387904]", "[0,4]"), 4), "more than 2^63 bytes"},
      {one(tensor("\"U8\"", "[0,9223372036854775807,9223372036854775807]", "[0,0]"), 0),
       "more than 2^63 bytes"},
      {one(tensor("\"F32\"", "[1]", "4"), 4), "expected [begin, end]"},
      {one(tensor("\"F32\"", "[1]", "[0]"), 4), "expected [begin, end]"},
      {one(tensor("\"F32\"", "[1]", "[0,4,8]"), 4), "expected [begin, end]"},
      {one(tensor("\"F32\"", "[1]", "[-4,0]"), 4), "[0, 2^63)"},
      {one(tensor("\"F32\"", "[1]", "[4,0]"), 4), "not inside"},
      {one(tensor("\"F32\"", "[2]", "[0,8]"), 4), "not inside the 4 bytes"},
      {one(tensor("\"F32\"", "[1]", "[9223372036854775807,9223372036854775807]"), 4), "not inside"},
      {one(tensor("\"F32\"", "[1]", "[0,8]"), 8), "need 4 bytes, data_offsets give 8"},
      {one(tensor("\"F32\"", "[]", "[0,0]"), 0), "need 4 bytes, data_offsets give 0"},
      {one(tensor("\"F32\"", "[1]", "[4,8]"), 8), "have a hole"},
      {one(tensor("\"F32\"", "[1]", "[0,4]") + "," + tensor("\"F32\"", "[1]", "[4,8]"), 8),
       "\"t\" appears twice"},
      {one(tensor("\"F32\"", "[1]", "[0,4]") +
               R"(,"u":{"dtype":"F32","shape":[1],"data_offsets":[2,6]})",
           6),
       "overlap"},
      {one(tensor("\"F32\"", "[1]", "[0,4]") +
               R"(,"u":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})",
           4),
       "overlap"},
      {file_with(R"({"__metadata__":3})", 0), "__metadata__: expected an object"},
      {file_with(R"({"__metadata__":{"a":3}})", 0), "\"a\" is not a string"},
      {file_with(R"({"__metadata__":{"a":"1","a":"2"}})", 0), "\"a\" appears twice"},
  };
  for (const auto& [file, part] : cases) {
    SCOPED_TRACE(part);
    expect_error(ErrorCode::kIo, {"test", part}, [&, f = file] { parse(f); });
  }
}

TEST(Safetensors_HostileName, IsEscapedInErrors) {
  const auto file =
      file_with("{\"\\u001b[2J\\n\":{\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
  expect_error(ErrorCode::kIo, {"\\x1b[2J\\n"}, [&] { parse(file); });
}

TEST(Safetensors_Truncation, EveryLengthIsRefused) {
  const auto file = file_with("{" + tensor("\"F32\"", "[4]", "[0,16]") + "}", 16);
  EXPECT_NO_THROW(parse(file));
  for (std::size_t n = 0; n < file.size(); ++n) {
    const std::string cut = file.substr(0, n);
    EXPECT_THROW(parse(cut), Error) << n;
  }
  EXPECT_THROW(parse(file + "x"), Error);
}

TEST(Safetensors_Open, KeepsTheMappingAlive) {
  const TempFolder folder;
  test::put(folder / "x.safetensors", file_with("{" + tensor("\"U8\"", "[2]", "[0,2]") + "}", 2));
  const auto copy = [&] {
    const auto file = SafetensorsFile::open(folder / "x.safetensors");
    return file;
  }();
  EXPECT_EQ(static_cast<int>(copy.info("t").data[1]), 1);
  expect_error(ErrorCode::kIo, {"none", "No such file"},
               [&] { SafetensorsFile::open(folder / "none"); });
}

TEST(Safetensors_ManyTensors, IsNotQuadratic) {
  std::string header = "{";
  constexpr int kCount = 100'000;
  for (int i = 0; i < kCount; ++i) {
    header += (i ? ",\"" : "\"") + std::to_string(i) +
              R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" + std::to_string(i) + "," +
              std::to_string(i + 1) + "]}";
  }
  const auto bytes = file_with(header + "}", kCount);
  EXPECT_EQ(parse(bytes).names().size(), static_cast<std::size_t>(kCount));
}

}  // namespace
}  // namespace kda::io
