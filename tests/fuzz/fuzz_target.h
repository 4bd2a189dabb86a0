/// Shared by the fuzz targets: what an input may do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "kda/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace kda::fuzz {

/// Runs `action`; hostile input may be refused with kIo or kInvalidArgument, nothing else: a broken
/// invariant, another exception or a signal is a finding.
template <class Action>
void refuse_or_pass(const Action& action) {
  try {
    action();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kIo && e.code() != ErrorCode::kInvalidArgument) std::abort();
  }
}

inline std::string_view as_text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Aborts unless `condition` holds.
inline void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace kda::fuzz
