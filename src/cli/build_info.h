/// Facts about this build. Their values are written at build time, into a unit of their own: a new
/// commit compiles that one only.
#pragma once

namespace kda::cli {
extern const char* const kVersion;
extern const char* const kCommit;  ///< 12 digits, "+changes" when the tree had any
extern const char* const kBuildType;
extern const char* const kCompiler;
extern const char* const kCxxFlags;
extern const char* const kTorchVersion;
extern const char* const kTorchCuda;    ///< CUDA version of torch's wheel, or none
extern const char* const kCudaBackend;  ///< off, or on with the architectures it has code for
extern const char* const kSanitizers;
extern const char* const kSourceFolder;
extern const char* const kPython;
}  // namespace kda::cli
