#include "io/number_text.h"

#include <charconv>
#include <cmath>
#include <system_error>

namespace kda::io {

std::string number_text(double value) {
  char buffer[64];
  const double size = std::abs(value);
  const bool plain = size == 0 || (size >= 1e-6 && size < 1e9);
  const auto [end, status] =
      std::to_chars(buffer, buffer + sizeof buffer, value,
                    plain ? std::chars_format::fixed : std::chars_format::scientific);
  return status == std::errc{} ? std::string(buffer, end) : std::string("?");
}

}  // namespace kda::io
