#include "io/safetensors_writer.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "io/io_test_support.h"

namespace kda::io {
namespace {

using test::bytes_of;
using test::expect_error;
using test::TempFolder;

constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;

TEST(SafetensorsWriter_RoundTrip, ValuesNamesMetadata) {
  const TempFolder folder;
  const auto path = folder / "m.safetensors";
  const std::vector<float> w = {1.5F, -2, 3, 4, 5, 6};
  const std::vector<std::int64_t> ids = {-1, 1};
  {
    SafetensorsWriter writer(path,
                             {{"模型.w", StDtype::kF32, {2, 3}},
                              {"empty", StDtype::kBF16, {0, 4}},
                              {"ids\n\"", StDtype::kI64, {2}},
                              {"flag", StDtype::kBool, {}}},
                             {{"format", "pt"}, {"step", "7"}});
    writer.write_tensor("模型.w", bytes_of(w));
    writer.write_tensor("empty", {});
    writer.write_tensor("ids\n\"", bytes_of(ids));
    writer.write(bytes_of(std::string_view("\x01", 1)));
    EXPECT_FALSE(std::filesystem::exists(path));
    writer.commit();
    EXPECT_EQ(writer.file_bytes(), std::filesystem::file_size(path));
  }
  const auto file = SafetensorsFile::open(path);
  EXPECT_EQ(file.names(), (std::vector<std::string>{"模型.w", "empty", "ids\n\"", "flag"}));
  EXPECT_EQ(file.metadata().at("step"), "7");
  const auto& t = file.info("模型.w");
  EXPECT_EQ(t.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(std::memcmp(t.data.data(), w.data(), t.data.size()), 0);
  // The data begin at a multiple of 8, so that readers may use them in place.
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.data.data()) % 8, 0u);
  EXPECT_EQ(folder.names().size(), 1u);
}

TEST(SafetensorsWriter_Pieces, MaySpanTensors) {
  const TempFolder folder;
  SafetensorsWriter writer(folder / "a", {{"x", StDtype::kU8, {3}}, {"y", StDtype::kU8, {2}}});
  writer.write(bytes_of(std::string_view("12")));
  expect_error(kBad, {"\"y\"", "out of order"},
               [&] { writer.write_tensor("y", bytes_of(std::string_view("45"))); });
  writer.write(bytes_of(std::string_view("345")));
  writer.commit();
  EXPECT_EQ(static_cast<char>(SafetensorsFile::open(folder / "a").info("y").data[0]), '4');
}

TEST(SafetensorsWriter_Misuse, IsRefusedAndLeavesNothing) {
  const TempFolder folder;
  const auto path = folder / "a";
  const auto make = [&](std::vector<StSpec> specs) { SafetensorsWriter w(path, std::move(specs)); };
  expect_error(kBad, {"\"a\"", "declared twice"}, [&] {
    make({{"a", StDtype::kU8, {1}}, {"a", StDtype::kU8, {1}}});
  });
  expect_error(kBad, {"reserved"}, [&] { make({{"__metadata__", StDtype::kU8, {1}}}); });
  expect_error(kBad, {"not UTF-8"}, [&] { make({{"\xFF", StDtype::kU8, {1}}}); });
  expect_error(kBad, {"negative dimension -3"}, [&] { make({{"a", StDtype::kU8, {2, -3}}}); });
  expect_error(kBad, {"2^63"}, [&] { make({{"a", StDtype::kF64, {std::int64_t{1} << 61}}}); });
  expect_error(kBad, {"2^63"}, [&] {
    const std::int64_t big = std::int64_t{1} << 62;
    make({{"a", StDtype::kU8, {big}},
          {"b", StDtype::kU8, {big}},
          {"c", StDtype::kU8, {big}},
          {"d", StDtype::kU8, {big}},
          {"e", StDtype::kU8, {big}}});
  });
  expect_error(kBad, {"metadata"}, [&] { SafetensorsWriter w(path, {}, {{"k", "\xFF"}}); });
  {
    SafetensorsWriter w(path, {{"a", StDtype::kU8, {2}}, {"b", StDtype::kU8, {1}}});
    expect_error(kBad, {"\"z\"", "not declared"}, [&] { w.write_tensor("z", {}); });
    expect_error(kBad, {"\"b\"", "out of order"},
                 [&] { w.write_tensor("b", bytes_of(std::string_view("x"))); });
    expect_error(kBad, {"\"a\"", "expected 2 bytes, got 1"},
                 [&] { w.write_tensor("a", bytes_of(std::string_view("x"))); });
    expect_error(kBad, {"more than the declared 3"},
                 [&] { w.write(bytes_of(std::string_view("xxxx"))); });
    expect_error(kBad, {"0 of 3 bytes"}, [&] { w.commit(); });
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(SafetensorsWriter_ReferenceReader, AcceptsOurFiles) {
  // The reference implementation, when this machine has it, must read what we write.
  if (std::system("python3 -c 'import safetensors.numpy' > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "no Python with safetensors";
  }
  const TempFolder folder;
  const std::vector<float> w = {1.5F, -2};
  SafetensorsWriter writer(folder / "m", {{"w", StDtype::kF32, {2}}, {"e", StDtype::kF16, {0}}},
                           {{"format", "pt"}});
  writer.write(bytes_of(w));
  writer.commit();
  const std::string command = "python3 -c 'import safetensors.numpy as s; d = s.load_file(\"" +
                              (folder / "m").string() +
                              "\"); assert d[\"w\"].tolist() == [1.5, -2.0] and len(d) == 2'";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace kda::io
