/// SHA-256 through OpenSSL's libcrypto (hardware-accelerated where the CPU can).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace kda::io {

using Sha256Digest = std::array<std::uint8_t, 32>;

/// Streaming hash.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  /// Digest of all bytes so far. Call once.
  Sha256Digest finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

Sha256Digest sha256(std::string_view text);
Sha256Digest sha256(std::span<const std::byte> bytes);
/// Hash of a file's content; Error(kIo) if it cannot be read.
Sha256Digest sha256_file(const std::filesystem::path& path);

struct FileDigest {
  std::uint64_t bytes = 0;
  Sha256Digest sha256{};
};
/// The same with the number of bytes. Reads block by block: a mapped file of gigabytes would show
/// as memory of the process.
FileDigest file_digest(const std::filesystem::path& path);

/// 64 lower-case hexadecimal digits.
std::string to_hex(const Sha256Digest& digest);
/// Inverse of `to_hex`; Error(kIo) for anything else.
Sha256Digest digest_from_hex(std::string_view hex);

}  // namespace kda::io
