#include <gtest/gtest.h>

#include "io/io_test_support.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"

namespace kda::io {
namespace {

using test::expect_error;
using test::put;
using test::TempFolder;

void write_shard(const std::filesystem::path& path, const std::vector<std::string>& names,
                 const std::map<std::string, std::string>& metadata = {}) {
  std::vector<StSpec> specs;
  std::string data;
  for (const auto& name : names) {
    specs.push_back({name, StDtype::kU8, {1}});
    data += name[0];
  }
  SafetensorsWriter writer(path, specs, metadata);
  writer.write(test::bytes_of(std::string_view(data)));
  writer.commit();
}

void write_index(const TempFolder& folder, const Json& map) {
  write_json_file(folder / "model.safetensors.index.json",
                  {{"metadata", {{"total_size", 3}}}, {"weight_map", map}});
}

TEST(SafetensorsSet_Sharded, FindsEveryTensor) {
  const TempFolder folder;
  write_shard(folder / "m-1.safetensors", {"a", "b"});
  write_shard(folder / "m-2.safetensors", {"c"}, {{"format", "pt"}});
  write_index(folder,
              {{"c", "m-2.safetensors"}, {"a", "m-1.safetensors"}, {"b", "m-1.safetensors"}});
  for (const auto& path : {folder.path(), folder / "model.safetensors.index.json"}) {
    const auto set = SafetensorsSet::open(path);
    EXPECT_EQ(set.names(), (std::vector<std::string>{"a", "b", "c"}));
    EXPECT_EQ(set.files().size(), 2u);
    EXPECT_EQ(static_cast<char>(set.info("c").data[0]), 'c');
    EXPECT_EQ(set.metadata().at("format"), "pt");
    EXPECT_TRUE(set.contains("b"));
    EXPECT_FALSE(set.contains("d"));
    expect_error(ErrorCode::kIo, {"no tensor \"d\""}, [&] { set.info("d"); });
  }
}

TEST(SafetensorsSet_Single, FileOrFolder) {
  const TempFolder folder;
  write_shard(folder / "model.safetensors", {"a"});
  EXPECT_EQ(SafetensorsSet::open(folder.path()).names().size(), 1u);
  const auto set = SafetensorsSet::open(folder / "model.safetensors");
  EXPECT_TRUE(set.metadata().empty());
  EXPECT_TRUE(set.contains("a"));
  const TempFolder empty;
  expect_error(ErrorCode::kIo, {"model.safetensors", "No such file"},
               [&] { SafetensorsSet::open(empty.path()); });
}

TEST(SafetensorsSet_Disagreement, IsRefused) {
  const TempFolder folder;
  write_shard(folder / "m-1.safetensors", {"a", "b"});
  write_index(folder, {{"a", "m-1.safetensors"}});
  expect_error(ErrorCode::kIo, {"\"b\" is not in"}, [&] { SafetensorsSet::open(folder.path()); });
  write_index(folder,
              {{"a", "m-1.safetensors"}, {"b", "m-1.safetensors"}, {"c", "m-1.safetensors"}});
  expect_error(ErrorCode::kIo, {"\"c\"", "is missing"},
               [&] { SafetensorsSet::open(folder.path()); });
  write_index(folder, {{"a", "none.safetensors"}});
  expect_error(ErrorCode::kIo, {"none.safetensors", "No such file"},
               [&] { SafetensorsSet::open(folder.path()); });
}

TEST(SafetensorsSet_HostileIndex, CannotLeaveTheFolder) {
  const TempFolder folder;
  for (const std::string name :
       {"../m", "/etc/passwd", "", ".", "..", "sub/m", std::string("a\0b", 3).c_str()}) {
    write_index(folder, {{"a", name}});
    EXPECT_THROW(SafetensorsSet::open(folder.path()), Error) << name;
  }
  write_index(folder, {{"a", std::string("m\0", 2)}});
  expect_error(ErrorCode::kIo, {"is not a file name"},
               [&] { SafetensorsSet::open(folder.path()); });
  write_index(folder, {{"a", 3}});
  expect_error(ErrorCode::kIo, {"not a string"}, [&] { SafetensorsSet::open(folder.path()); });
  for (const std::string text : {"[]", "{}", R"({"weight_map": 3})"}) {
    put(folder / "model.safetensors.index.json", text);
    expect_error(ErrorCode::kIo, {"weight_map"}, [&] { SafetensorsSet::open(folder.path()); });
  }
}

}  // namespace
}  // namespace kda::io
