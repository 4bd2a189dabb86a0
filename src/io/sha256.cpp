#include "io/sha256.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "io/atomic_file.h"
#include "io/escape.h"
#include "kda/error.h"

namespace kda::io {
namespace {

struct Closer {
  int fd;
  ~Closer() { ::close(fd); }
};

void check(int ok) {
  if (ok != 1) throw Error(ErrorCode::kInternal, "libcrypto: SHA-256 is not available");
}

}  // namespace

struct Sha256::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {
  check(impl_->context != nullptr ? 1 : 0);
  check(EVP_DigestInit_ex(impl_->context, EVP_sha256(), nullptr));
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte> bytes) {
  check(EVP_DigestUpdate(impl_->context, bytes.data(), bytes.size()));
}

Sha256Digest Sha256::finish() {
  Sha256Digest digest{};
  check(EVP_DigestFinal_ex(impl_->context, digest.data(), nullptr));
  return digest;
}

Sha256Digest sha256(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

Sha256Digest sha256(std::string_view text) { return sha256(std::as_bytes(std::span(text))); }

Sha256Digest sha256_file(const std::filesystem::path& path) { return file_digest(path).sha256; }

FileDigest file_digest(const std::filesystem::path& path) {
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  // O_NONBLOCK: a FIFO would wait for a writer; regular files do not know it.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw_errno("cannot open", path);
  const Closer closer{fd};
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::kIo, "cannot read " + escaped(path.string()) + ": not a regular file");
  }
  Sha256 hash;
  FileDigest digest;
  std::vector<std::byte> block(kBlock);
  for (;;) {
    const ssize_t count = ::read(fd, block.data(), block.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_errno("cannot read", path);
    if (count == 0) break;
    hash.update(std::span(block).first(static_cast<std::size_t>(count)));
    digest.bytes += static_cast<std::uint64_t>(count);
  }
  digest.sha256 = hash.finish();
  return digest;
}

std::string to_hex(const Sha256Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const std::uint8_t byte : digest) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

Sha256Digest digest_from_hex(std::string_view hex) {
  Sha256Digest digest{};
  bool good = hex.size() == 2 * digest.size();
  for (std::size_t i = 0; good && i < hex.size(); ++i) {
    const char c = hex[i];
    int value = -1;
    if (c >= '0' && c <= '9') value = c - '0';
    if (c >= 'a' && c <= 'f') value = c - 'a' + 10;
    good = value >= 0;
    if (good) {
      digest[i / 2] = static_cast<std::uint8_t>((digest[i / 2] << 4) | value);
    }
  }
  if (!good) {
    throw Error(ErrorCode::kIo,
                "sha256: expected 64 lower-case hexadecimal digits, got " + escaped(hex));
  }
  return digest;
}

}  // namespace kda::io
