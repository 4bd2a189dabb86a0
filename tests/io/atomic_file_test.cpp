#include "io/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/io_test_support.h"
#include "io/mapped_file.h"

namespace kda::io {
namespace {

using test::expect_error;
using test::get;
using test::put;
using test::TempFolder;
using Names = std::vector<std::string>;

TEST(AtomicFile_Commit, MakesTheFileVisibleAtOnce) {
  const TempFolder folder;
  put(folder / "a", "old");
  AtomicFile file(folder / "a");
  file.write("ne");
  file.write("w!");
  EXPECT_EQ(file.size(), 4u);
  EXPECT_EQ(get(folder / "a"), "old");
  file.commit();
  EXPECT_EQ(get(folder / "a"), "new!");
  EXPECT_EQ(folder.names(), Names{"a"});
}

TEST(AtomicFile_Destroyed, LeavesNothing) {
  const TempFolder folder;
  {
    AtomicFile file(folder / "a");
    file.write("half");
    EXPECT_EQ(folder.names().size(), 1u);
    EXPECT_TRUE(is_temporary_name(folder.names()[0]));
  }
  EXPECT_EQ(folder.names(), Names{});
}

TEST(AtomicFile_Write, LargePiecesKeepTheirOrder) {
  const TempFolder folder;
  const std::string big(3u << 20, 'b');
  AtomicFile file(folder / "a");
  file.write("head");
  file.write(big);
  file.write("tail");
  file.commit();
  EXPECT_EQ(get(folder / "a"), "head" + big + "tail");
}

TEST(AtomicFile_Overwrite, ChangesWrittenBytesOnly) {
  const TempFolder folder;
  AtomicFile file(folder / "a");
  file.write("0123456789");
  file.overwrite(2, test::bytes_of(std::string_view("xy")));
  file.write("!");
  EXPECT_EQ(
      test::error_of([&] { file.overwrite(10, test::bytes_of(std::string_view("ab"))); })->code(),
      ErrorCode::kInternal);
  EXPECT_EQ(test::error_of([&] { file.overwrite(99, {}); })->code(), ErrorCode::kInternal);
  file.commit();
  EXPECT_EQ(get(folder / "a"), "01xy456789!");
  EXPECT_EQ(test::error_of([&] { file.commit(); })->code(), ErrorCode::kInternal);
}

TEST(AtomicFile_Open, NamesPathAndReason) {
  const TempFolder folder;
  expect_error(ErrorCode::kIo, {"none/a", "No such file or directory"},
               [&] { AtomicFile file(folder / "none/a"); });
  expect_error(ErrorCode::kInvalidArgument, {"file name"}, [&] { AtomicFile file("folder/"); });
}

TEST(AtomicFile_Commit, OverAFolderFailsWithoutLitter) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "d");
  expect_error(ErrorCode::kIo, {"cannot put in place", "Is a directory"},
               [&] { write_file_atomic(folder / "d", "x"); });
  EXPECT_EQ(folder.names(), Names{"d"});
}

TEST(AtomicFile_Open, RefusesDevicesAndPipes) {
  const TempFolder folder;
  const std::filesystem::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::filesystem::path& path : {pipe, std::filesystem::path("/dev/null")}) {
    expect_error(ErrorCode::kIo, {"cannot replace", path.string()}, [&] { AtomicFile file(path); });
    EXPECT_TRUE(std::filesystem::is_other(path)) << path;
  }
  EXPECT_EQ(folder.names(), Names{"pipe"});
}

TEST(AtomicFile_Commit, WritesBehindSymbolicLinks) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "d");
  put(folder / "d/file", "old");
  std::filesystem::create_symlink("d/file", folder / "near");
  std::filesystem::create_symlink(folder / "near", folder / "far");
  std::filesystem::create_symlink("new", folder / "dangling");
  write_file_atomic(folder / "far", "content");
  EXPECT_EQ(get(folder / "d/file"), "content");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "far"));
  write_file_atomic(folder / "dangling", "made");
  EXPECT_EQ(get(folder / "new"), "made");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "dangling"));
}

TEST(AtomicFile_RelativeName, WorksInTheCurrentFolder) {
  const TempFolder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  write_file_atomic("plain", "x");
  std::filesystem::current_path(before);
  EXPECT_EQ(get(folder / "plain"), "x");
}

TEST(TemporaryFiles_Remove, OnlyOurs) {
  const TempFolder folder;
  put(folder / ".a.kda-tmp-12-0", "x");
  put(folder / "keep.kda-tmp-12-0", "x");
  put(folder / ".hidden", "x");
  EXPECT_EQ(remove_temporary_files(folder.path()), 1u);
  EXPECT_EQ(folder.names(), (Names{".hidden", "keep.kda-tmp-12-0"}));
  expect_error(ErrorCode::kIo, {"cannot list"}, [&] { remove_temporary_files(folder / "none"); });
}

TEST(ReadFile_Limits, SizeAndKind) {
  const TempFolder folder;
  put(folder / "a", "12345");
  EXPECT_EQ(read_file(folder / "a", 5), "12345");
  expect_error(ErrorCode::kIo, {"5 bytes", "at most 4"}, [&] { read_file(folder / "a", 4); });
  expect_error(ErrorCode::kIo, {"not a regular file"}, [&] { read_file(folder.path()); });
  expect_error(ErrorCode::kIo, {"No such file"}, [&] { read_file(folder / "b"); });
  expect_error(ErrorCode::kIo, {"cannot open folder"}, [&] { sync_folder(folder / "b"); });
}

TEST(ReadFile_HostileName, IsEscaped) {
  const TempFolder folder;
  expect_error(ErrorCode::kIo, {"evil\\x1b[2J"}, [&] { read_file(folder / "evil\x1b[2J"); });
}

TEST(MappedFile_Moves, KeepTheMapping) {
  const TempFolder folder;
  put(folder / "a", "abc");
  put(folder / "b", "");
  MappedFile a(folder / "a");
  MappedFile b(folder / "b");
  EXPECT_TRUE(b.bytes().empty());
  b = std::move(a);
  const MappedFile c(std::move(b));
  ASSERT_EQ(c.bytes().size(), 3u);
  EXPECT_EQ(static_cast<char>(c.bytes()[2]), 'c');
  expect_error(ErrorCode::kIo, {"cannot open"}, [&] { MappedFile file(folder / "none"); });
  expect_error(ErrorCode::kIo, {"not a regular file"}, [&] { MappedFile file(folder.path()); });
}

TEST(ReadFile_Fifo, IsRefusedAtOnce) {
  const TempFolder folder;
  const auto fifo = folder / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  expect_error(ErrorCode::kIo, {"not a regular file"}, [&] { read_file(fifo); });
  expect_error(ErrorCode::kIo, {"not a regular file"}, [&] { MappedFile file(fifo); });
}

}  // namespace
}  // namespace kda::io
