#include "io/sha256.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "io/io_test_support.h"

namespace kda::io {
namespace {

using test::expect_error;
using test::TempFolder;

// FIPS 180-4 examples and the long message of NIST's example set.
TEST(Sha256_Digest, NistVectors) {
  EXPECT_EQ(to_hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(to_hex(sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  Sha256 hash;
  for (int i = 0; i < 1000; ++i)
    hash.update(std::string(1000, 'a'));
  EXPECT_EQ(to_hex(hash.finish()),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256_File, EqualsMemory) {
  const TempFolder folder;
  test::put(folder / "x", std::string(100000, 'q'));
  EXPECT_EQ(sha256_file(folder / "x"), sha256(std::string(100000, 'q')));
  test::put(folder / "empty", "");
  EXPECT_EQ(sha256_file(folder / "empty"), sha256(""));
  expect_error(ErrorCode::kIo, {"No such file"}, [&] { sha256_file(folder / "none"); });
  expect_error(ErrorCode::kIo, {"not a regular file"}, [&] { sha256_file(folder.path()); });
}

/// Highest resident memory of this process so far, in KiB.
std::int64_t peak_kib() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST(Sha256_File, IsReadInBlocks) {
  const TempFolder folder;
  constexpr std::int64_t kBytes = 96 << 20;
  test::put(folder / "large", "x");
  std::filesystem::resize_file(folder / "large", kBytes);
  const std::int64_t before = peak_kib();
  const FileDigest digest = file_digest(folder / "large");
  EXPECT_EQ(digest.bytes, static_cast<std::uint64_t>(kBytes));
  EXPECT_LT(peak_kib() - before, kBytes / 1024 / 4);
  EXPECT_EQ(digest.sha256, sha256("x" + std::string(kBytes - 1, '\0')));
}

TEST(Sha256_Hex, RoundTripAndRefusal) {
  const auto digest = sha256("abc");
  EXPECT_EQ(digest_from_hex(to_hex(digest)), digest);
  for (const std::string& bad : {std::string(63, 'a'), std::string(65, 'a'), std::string(64, 'A'),
                                 std::string(64, 'g'), std::string()}) {
    expect_error(ErrorCode::kIo, {"64 lower-case hexadecimal digits"},
                 [&] { digest_from_hex(bad); });
  }
}

}  // namespace
}  // namespace kda::io
