#include "core/check.h"
#include "kda/backend.h"
#include "kda/error.h"
#include "kda/version.h"

#define KDA_STRINGIFY_(x) #x
#define KDA_STRINGIFY(x) KDA_STRINGIFY_(x)

namespace kda {

const char* name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kOutOfMemory:
      return "out of memory";
    case ErrorCode::kCuda:
      return "cuda error";
    case ErrorCode::kIo:
      return "i/o error";
    case ErrorCode::kNonFinite:
      return "non-finite value";
    case ErrorCode::kInternal:
      return "internal error";
  }
  return "?";
}

const char* name_of(Backend backend) {
  switch (backend) {
    case Backend::kAuto:
      return "auto";
    case Backend::kRef:
      return "ref";
    case Backend::kCpu:
      return "cpu";
    case Backend::kCuda:
      return "cuda";
  }
  return "?";
}

Backend backend_from_name(const std::string& name) {
  for (Backend backend : {Backend::kAuto, Backend::kRef, Backend::kCpu, Backend::kCuda}) {
    if (name == name_of(backend)) return backend;
  }
  core::fail_argument("backend: expected auto, ref, cpu or cuda, given '" + name + "'");
}

const char* version() {
  return KDA_STRINGIFY(KDA_VERSION_MAJOR) "." KDA_STRINGIFY(KDA_VERSION_MINOR) "." KDA_STRINGIFY(
      KDA_VERSION_PATCH);
}

}  // namespace kda
