/// Errors that say which option they are about.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "kda/error.h"

namespace kda::train {

/// What `body` returns; an Error that it throws gets "`flag`: " in front unless it names a flag
/// itself ("preset: ..." becomes "--preset: ..."). For calls whose own errors know a path or a
/// field, not the option it came from.
template <class Body>
auto named(std::string_view flag, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Error& error) {
    const std::string text = error.what();
    if (text.starts_with("--")) throw;
    const std::string field = std::string(flag.substr(std::min<std::size_t>(2, flag.size()))) + ":";
    if (text.starts_with(field)) throw Error(error.code(), "--" + text);
    throw Error(error.code(), std::string(flag) + ": " + text);
  }
}

}  // namespace kda::train
