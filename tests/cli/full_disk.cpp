// Replaces write(2): after KDA_TEST_DISK_BYTES bytes written to regular files of the process, the
// disk is full. Half of the failing write gets through, as on a real disk.
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

namespace {

std::atomic<long long> g_written{0};

long long limit() {
  static const long long bytes = [] {
    const char* text = std::getenv("KDA_TEST_DISK_BYTES");
    return text == nullptr ? -1 : std::atoll(text);
  }();
  return bytes;
}

using Write = ssize_t (*)(int, const void*, size_t);

}  // namespace

extern "C" ssize_t write(int fd, const void* data, size_t count) {
  static const Write real = reinterpret_cast<Write>(::dlsym(RTLD_NEXT, "write"));
  struct stat info {};
  if (limit() < 0 || ::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return real(fd, data, count);
  }
  const long long room = limit() - g_written.load();
  if (room <= 0) {
    errno = ENOSPC;
    return -1;
  }
  const size_t part = static_cast<long long>(count) > room ? static_cast<size_t>(room) : count;
  const ssize_t done = real(fd, data, part);
  if (done > 0) g_written += done;
  return done;
}
