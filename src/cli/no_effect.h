/// Options of a verb that would do nothing beside the others that were given.
#pragma once

#include <CLI/CLI.hpp>
#include <initializer_list>
#include <string>

#include "kda/error.h"

namespace kda::cli {

/// Throws kInvalidArgument for the first of `flags` that the user gave: an option that is read and
/// then ignored is a wish that nobody answers.
inline void refuse_given(const CLI::App* verb, std::initializer_list<const char*> flags,
                         const std::string& why) {
  for (const char* flag : flags) {
    if (verb->count(flag) == 0) continue;
    throw Error(ErrorCode::kInvalidArgument,
                std::string(flag) + ": has no effect " + why + "; leave it out");
  }
}

}  // namespace kda::cli
