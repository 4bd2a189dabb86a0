// Whether a list of compiled architectures, as CMake writes it ("80-real;90a-real"), has code for a
// GPU. Plain host code.
#pragma once

#include <string>
#include <string_view>

namespace kda::cuda {

// One entry: "80-real" machine code for 8.0 and later 8.x, "90a-real" for 9.0 alone, "100f-real"
// for 10.0 and later 10.x; "80-virtual" what the driver translates for 8.0 and anything later; "80"
// both.
struct Architecture {
  int major = 0;
  int minor = 0;
  char suffix = 0;  // 'a', 'f' or 0
  bool real = true;
  bool ptx = true;

  bool covers(int gpu_major, int gpu_minor) const {
    const bool same_major = gpu_major == major;
    if (suffix == 'a') return same_major && gpu_minor == minor;
    if (real && same_major && gpu_minor >= minor) return true;
    return ptx && suffix == 0 && gpu_major * 100 + gpu_minor >= major * 100 + minor;
  }
};

constexpr Architecture parse_architecture(std::string_view entry) {
  Architecture a;
  const std::size_t dash = entry.find('-');
  std::string_view number = entry.substr(0, dash);
  if (dash != std::string_view::npos) {
    a.real = entry.substr(dash + 1) == "real";
    a.ptx = !a.real;
  }
  if (!number.empty() && (number.back() == 'a' || number.back() == 'f')) {
    a.suffix = number.back();
    number.remove_suffix(1);
  }
  int value = 0;
  for (const char digit : number)
    value = 10 * value + (digit - '0');
  a.major = value / 10;
  a.minor = value % 10;
  return a;
}

// Empty when the list has code for the GPU, else what is missing, in one line.
inline std::string no_code_reason(std::string_view list, int gpu_major, int gpu_minor) {
  std::string names;
  while (!list.empty()) {
    const std::size_t end = list.find_first_of(";,");
    const std::string_view entry = list.substr(0, end);
    list = end == std::string_view::npos ? std::string_view() : list.substr(end + 1);
    if (entry.empty()) continue;
    const Architecture a = parse_architecture(entry);
    if (a.covers(gpu_major, gpu_minor)) return {};
    if (!names.empty()) names += ", ";
    names += std::to_string(a.major) + "." + std::to_string(a.minor);
    if (a.suffix != 0) names += a.suffix;
    if (a.ptx && a.suffix == 0) names += " and later";
  }
  return "the GPU has compute capability " + std::to_string(gpu_major) + "." +
         std::to_string(gpu_minor) + ", this build has code for " + names +
         (gpu_major < 8 ? "; GPUs before 8.0 are not supported" : " (see KDA_CUDA_ARCHS)");
}

}  // namespace kda::cuda
