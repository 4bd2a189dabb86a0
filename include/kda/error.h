/// The one exception type of the library.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace kda {

/// Why a call failed. The program `kda` maps each to an exit code (docs/units.md).
enum class ErrorCode : std::uint8_t {
  kInvalidArgument,  ///< a shape, dtype, value or flag that no backend could accept
  kUnsupported,      ///< a legal request that the chosen backend or build cannot serve
  kOutOfMemory,      ///< an allocation failed, or a workspace is too small
  kCuda,             ///< the CUDA runtime or driver reported an error
  kIo,               ///< a file could not be read, written or parsed
  kNonFinite,        ///< NaN or infinity where the computation has to stop
  kInternal,         ///< a broken invariant of this library: please report it
};

/// "invalid argument", "unsupported", ...
const char* name_of(ErrorCode code);

/// Thrown by every function of the library that can fail. The text names the argument, what was
/// expected, what was given and, where it helps, what is supported.
class Error : public std::runtime_error {
 public:
  /// `message` names the argument, what was expected and what was given.
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  /// Why, for programs.
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace kda
