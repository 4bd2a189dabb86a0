#include "io/manifest.h"

#include <gtest/gtest.h>

#include "io/io_test_support.h"

namespace kda::io {
namespace {

using test::expect_error;
using test::put;
using test::TempFolder;

TEST(Manifest_RoundTrip, VerifiesSizesAndHashes) {
  const TempFolder folder;
  put(folder / "a", "hello");
  put(folder / "empty", "");
  write_manifest(folder.path(), "checkpoint", {"a", "empty"}, {{"step", 7}});
  const Manifest manifest = read_manifest(folder.path());
  EXPECT_EQ(manifest.kind, "checkpoint");
  EXPECT_EQ(manifest.info["step"], 7);
  ASSERT_EQ(manifest.files.size(), 2u);
  EXPECT_EQ(manifest.files[0].bytes, 5u);
  EXPECT_EQ(manifest.files[0].sha256, sha256("hello"));
  EXPECT_TRUE(verify_manifest(folder.path(), manifest, VerifyLevel::kHashes).empty());

  put(folder / "a", "hellO");
  EXPECT_TRUE(verify_manifest(folder.path(), manifest, VerifyLevel::kSizes).empty());
  auto faults = verify_manifest(folder.path(), manifest, VerifyLevel::kHashes);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults[0].find("sha256"), std::string::npos);

  put(folder / "a", "hell");
  std::filesystem::remove(folder / "empty");
  faults = verify_manifest(folder.path(), manifest, VerifyLevel::kSizes);
  ASSERT_EQ(faults.size(), 2u);
  EXPECT_NE(faults[0].find("4 bytes, 5 expected"), std::string::npos);
  EXPECT_NE(faults[1].find("No such file"), std::string::npos);
}

TEST(Manifest_Verify, AFolderInPlaceOfAFileIsAFault) {
  const TempFolder folder;
  put(folder / "a", "x");
  Manifest manifest = write_manifest(folder.path(), "k", {"a"}, {});
  std::filesystem::remove(folder / "a");
  std::filesystem::create_directory(folder / "a");
  EXPECT_EQ(verify_manifest(folder.path(), manifest, VerifyLevel::kHashes).size(), 1u);
}

TEST(Manifest_Names, MustStayInside) {
  const TempFolder folder;
  for (const std::string name : {"../a", "/etc/passwd", "", "x/../../a", "./a", "sub/"}) {
    expect_error(ErrorCode::kInvalidArgument, {"inside the folder"},
                 [&] { write_manifest(folder.path(), "k", {name}, {}); });
    Json json = {{"format", "kda-manifest"},
                 {"version", 1},
                 {"kind", "k"},
                 {"info", Json::object()},
                 {"files", {{{"name", name}, {"bytes", 1}, {"sha256", std::string(64, '0')}}}}};
    write_json_file(folder / kManifestName, json);
    expect_error(ErrorCode::kIo, {"files[0].name", "inside the folder"},
                 [&] { read_manifest(folder.path()); });
  }
}

TEST(Manifest_Malformed, IsRefusedWithThePath) {
  const TempFolder folder;
  expect_error(ErrorCode::kIo, {"manifest.json", "No such file"},
               [&] { read_manifest(folder.path()); });
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "format: missing"},
      {R"({"format":"x","version":1,"kind":"k","files":[]})", "kda-manifest"},
      {R"({"format":"kda-manifest","version":2,"kind":"k","files":[]})", "version"},
      {R"({"format":"kda-manifest","version":1,"kind":"k"})", "files: expected an array"},
      {R"({"format":"kda-manifest","version":1,"kind":"k","files":[3]})", "files[0]"},
      {R"({"format":"kda-manifest","version":1,"kind":"k","files":[],"extra":1})", "extra"},
      {R"({"format":"kda-manifest","version":1,"kind":"k","files":[{"name":"a","bytes":-1,
          "sha256":""}]})",
       "bytes"},
      {R"({"format":"kda-manifest","version":1,"kind":"k","files":[{"name":"a","bytes":1,
          "sha256":"zz"}]})",
       "sha256"},
      {"[]", "expected an object"},
      {"{", "not valid JSON"},
  };
  for (const auto& [text, part] : cases) {
    SCOPED_TRACE(text);
    put(folder / kManifestName, text);
    expect_error(ErrorCode::kIo, {"manifest.json", part}, [&] { read_manifest(folder.path()); });
  }
}

TEST(Manifest_MissingFile, IsAnErrorWhenWriting) {
  const TempFolder folder;
  expect_error(ErrorCode::kIo, {"none"}, [&] { write_manifest(folder.path(), "k", {"none"}, {}); });
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace kda::io
