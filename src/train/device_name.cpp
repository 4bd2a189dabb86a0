#include "train/device_name.h"

#include <charconv>
#include <string_view>

#include "io/escape.h"
#include "kda/error.h"

namespace kda::train {

std::optional<int> gpu_index(const std::string& name) {
  constexpr std::string_view kPrefix = "cuda";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  if (name == kPrefix) return 0;
  if (name[kPrefix.size()] != ':') return std::nullopt;
  const char* begin = name.data() + kPrefix.size() + 1;
  const char* end = name.data() + name.size();
  int index = 0;
  const auto [stop, status] = std::from_chars(begin, end, index);
  if (begin == end || status != std::errc{} || stop != end || index < 0 || index > 127) {
    return std::nullopt;
  }
  return index;
}

void check_device_name(const std::string& name) {
  if (name == "auto" || name == "cpu" || gpu_index(name)) return;
  throw Error(ErrorCode::kInvalidArgument,
              "--device: expected auto, cpu, cuda or cuda:N, got " + io::escaped(name));
}

}  // namespace kda::train
