#include "train/process_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace kda::train {
namespace {

/// Value of "KEY:   123 kB" in a /proc file, in bytes.
std::int64_t proc_field(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (word == key) {
      std::int64_t kib = 0;
      return file >> kib ? kib * 1024 : 0;
    }
    file.ignore(1 << 16, '\n');
  }
  return 0;
}

/// A cgroup file that holds one number; 0 when absent or "max".
std::int64_t number_in(const char* path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  return file >> value ? value : 0;
}

}  // namespace

std::int64_t resident_bytes() { return proc_field("/proc/self/status", "VmRSS:"); }
std::int64_t peak_resident_bytes() { return proc_field("/proc/self/status", "VmHWM:"); }

std::int64_t available_bytes() {
  std::int64_t bytes = proc_field("/proc/meminfo", "MemAvailable:");
  if (const std::int64_t limit = number_in("/sys/fs/cgroup/memory.max"); limit > 0) {
    const std::int64_t used = number_in("/sys/fs/cgroup/memory.current");
    bytes = std::min(bytes, std::max<std::int64_t>(0, limit - used));
  }
  return bytes;
}

}  // namespace kda::train
