#include "cli/standard_input.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "kda/error.h"

namespace kda::cli {

void check_standard_input() {
  const int code = errno;
  if (std::ferror(stdin) != 0) {
    throw Error(ErrorCode::kIo, std::string("cannot read standard input: ") + std::strerror(code));
  }
}

std::string read_standard_input() {
  std::string text;
  std::array<char, 1 << 16> block;
  errno = 0;
  while (const std::size_t count = std::fread(block.data(), 1, block.size(), stdin))
    text.append(block.data(), count);
  check_standard_input();
  return text;
}

}  // namespace kda::cli
