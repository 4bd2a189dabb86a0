/// The page's files, inside the program: it works wherever the program lies.
#pragma once

#include <string>
#include <string_view>

namespace kda::view {

struct Asset {
  std::string_view path;  ///< "/", "/page/main.js", ...
  std::string_view type;
  std::string_view bytes;
};

/// Null for other paths. The list is made by CMake (assets.cpp.in).
const Asset* find_asset(std::string_view path);

}  // namespace kda::view
