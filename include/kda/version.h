/// Version of the library.
#pragma once

#define KDA_VERSION_MAJOR 0  ///< other interfaces
#define KDA_VERSION_MINOR 1  ///< new features; before 1.0 also other interfaces
#define KDA_VERSION_PATCH 0  ///< corrections

namespace kda {

/// "0.1.0"
const char* version();

}  // namespace kda
