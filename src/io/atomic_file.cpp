#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "io/escape.h"
#include "kda/error.h"

namespace kda::io {
namespace {

constexpr std::string_view kTemporaryMark = ".kda-tmp-";
constexpr std::size_t kBufferBytes = 1u << 20;

std::filesystem::path parent_or_here(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

/// Unique among the processes and threads that may write the same file.
std::filesystem::path temporary_beside(const std::filesystem::path& path) {
  static std::atomic<unsigned> counter{0};
  std::string name(".");
  name += path.filename().string();
  name += kTemporaryMark;
  name += std::to_string(::getpid()) + "-" + std::to_string(counter.fetch_add(1));
  return parent_or_here(path) / name;
}

/// Writes all bytes; false with errno set on failure.
bool write_all(int fd, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t n = ::write(fd, data, size);
    if (n < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    data += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

bool pwrite_all(int fd, const char* data, std::size_t size, std::uint64_t offset) {
  while (size > 0) {
    const ssize_t n = ::pwrite(fd, data, size, static_cast<off_t>(offset));
    if (n < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    data += n;
    size -= static_cast<std::size_t>(n);
    offset += static_cast<std::uint64_t>(n);
  }
  return true;
}

/// The file behind a chain of symbolic links: it is what gets the new content, not the link.
std::filesystem::path behind_links(std::filesystem::path path) {
  constexpr int kMostLinks = 40;  // as the kernel follows
  std::error_code ignored;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(path, ignored); ++i) {
    const std::filesystem::path target = std::filesystem::read_symlink(path);
    path = target.is_absolute() ? target : parent_or_here(path) / target;
  }
  return path;
}

}  // namespace

void throw_errno(std::string_view what, const std::filesystem::path& path) {
  const int code = errno;
  throw Error(ErrorCode::kIo, std::string(what) + " " + escaped(path.string()) + ": " +
                                  std::generic_category().message(code));
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(behind_links(std::move(path))) {
  if (!path_.has_filename()) {
    throw Error(ErrorCode::kInvalidArgument,
                "path: expected a file name, got " + escaped(path_.string()));
  }
  // The rename at the end would put a file in the place of a device or a pipe.
  std::error_code ignored;
  if (std::filesystem::is_other(path_, ignored)) {
    throw Error(ErrorCode::kIo, "cannot replace " + escaped(path_.string()) +
                                    ": it is a device, pipe or socket, expected a file or nothing");
  }
  temporary_ = temporary_beside(path_);
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) throw_errno("cannot create a file beside", path_);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* step) {
  const int code = errno;
  ::close(fd_);
  fd_ = -1;
  ::unlink(temporary_.c_str());
  errno = code;
  throw_errno(step, path_);
}

void AtomicFile::flush() {
  if (fd_ < 0) throw Error(ErrorCode::kInternal, "AtomicFile: written after commit or failure");
  if (!write_all(fd_, buffer_.data(), buffer_.size())) fail("cannot write");
  buffer_.clear();
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const char*>(bytes.data());
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() >= kBufferBytes) {
    if (!write_all(fd_, data, bytes.size())) fail("cannot write");
  } else {
    buffer_.append(data, bytes.size());
  }
  size_ += bytes.size();
}

void AtomicFile::overwrite(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (offset > size_ || bytes.size() > size_ - offset) {
    throw Error(ErrorCode::kInternal, "AtomicFile: overwrite past the end");
  }
  flush();
  if (!pwrite_all(fd_, reinterpret_cast<const char*>(bytes.data()), bytes.size(), offset)) {
    fail("cannot write");
  }
}

void AtomicFile::commit() {
  flush();
  if (::fsync(fd_) != 0) fail("cannot sync");
  // close may report a write error that the file system held back (NFS).
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int code = errno;
    ::unlink(temporary_.c_str());
    errno = code;
    throw_errno("cannot put in place", path_);
  }
  sync_folder(parent_or_here(path_));
}

void write_file_atomic(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

bool is_temporary_name(std::string_view file_name) {
  return file_name.starts_with('.') && file_name.find(kTemporaryMark) != std::string_view::npos;
}

std::size_t remove_temporary_files(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  if (error) {
    throw Error(ErrorCode::kIo, "cannot list " + escaped(folder.string()) + ": " + error.message());
  }
  std::vector<std::filesystem::path> leftovers;
  for (const auto& entry : entries) {
    if (is_temporary_name(entry.path().filename().string())) leftovers.push_back(entry.path());
  }
  for (const auto& path : leftovers) {
    if (::unlink(path.c_str()) != 0) throw_errno("cannot remove", path);
  }
  return leftovers.size();
}

void sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw_errno("cannot open folder", folder);
  // Some file systems (FUSE, certain network ones) cannot sync a folder and say EINVAL.
  const bool failed = ::fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP;
  const int code = errno;
  ::close(fd);
  if (failed) {
    errno = code;
    throw_errno("cannot sync folder", folder);
  }
}

std::string read_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  // O_NONBLOCK: a FIFO would wait for a writer; regular files do not know it.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw_errno("cannot open", path);
  struct Closer {
    int fd;
    ~Closer() { ::close(fd); }
  } closer{fd};
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw_errno("cannot stat", path);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::kIo, "cannot read " + escaped(path.string()) + ": not a regular file");
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size > max_bytes) {
    throw Error(ErrorCode::kIo, "cannot read " + escaped(path.string()) + ": " +
                                    std::to_string(size) + " bytes, at most " +
                                    std::to_string(max_bytes) + " expected");
  }
  std::string content(size, '\0');
  std::size_t at = 0;
  while (at < content.size()) {
    const ssize_t n = ::read(fd, content.data() + at, content.size() - at);
    if (n < 0) {
      if (errno == EINTR) continue;
      throw_errno("cannot read", path);
    }
    if (n == 0) break;
    at += static_cast<std::size_t>(n);
  }
  content.resize(at);
  return content;
}

}  // namespace kda::io
