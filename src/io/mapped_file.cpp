#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "io/atomic_file.h"
#include "io/escape.h"
#include "kda/error.h"

namespace kda::io {

MappedFile::MappedFile(const std::filesystem::path& path) {
  // O_NONBLOCK: a FIFO would wait for a writer; regular files do not know it.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw_errno("cannot open", path);
  struct stat status {};
  const bool regular = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  void* address = nullptr;
  int code = 0;
  if (regular && status.st_size > 0) {
    address =
        ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
    code = errno;
  }
  ::close(fd);  // the mapping keeps the file
  if (!regular) {
    throw Error(ErrorCode::kIo, "cannot read " + escaped(path.string()) + ": not a regular file");
  }
  if (address == MAP_FAILED) {
    errno = code;
    throw_errno("cannot map", path);
  }
  data_ = static_cast<const std::byte*>(address);
  size_ = static_cast<std::size_t>(status.st_size);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace kda::io
