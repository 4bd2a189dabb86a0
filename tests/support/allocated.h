// What a process holds, for tests that look for leaks: exact, where resident memory would count
// what malloc keeps for later.
#pragma once

#include <malloc.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>

namespace kda::test {

// Bytes that the process has from malloc.
inline std::int64_t allocated_bytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

// The lines of /proc/self/maps: mapped files are among them by name.
inline std::string mapped_files() {
  std::ifstream file("/proc/self/maps");
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace kda::test
