/// Backends, how one is chosen, and what a call may be told beside its tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kda/workspace.h"

namespace kda {

/// Who computes a call.
enum class Backend : std::uint8_t {
  kAuto,  ///< the fastest backend that can serve the call; explain_... say which and why
  kRef,   ///< the oracle: slow, obvious, float or double
  kCpu,   ///< SIMD and threads
  kCuda,  ///< NVIDIA GPUs; present when libkda_cuda is linked or loaded
};

/// "auto", "ref", "cpu", "cuda".
const char* name_of(Backend backend);

/// The reverse; throws kInvalidArgument with the accepted names.
Backend backend_from_name(const std::string& name);

/// How to run a call.
struct Context {
  Backend backend = Backend::kAuto;  ///< kAuto, or exactly this one
  void* stream = nullptr;            ///< cudaStream_t of the CUDA backend; ignored by host backends
  Workspace workspace{};             ///< see workspace.h
};

/// One backend's answer to "can you serve this call?".
struct BackendVerdict {
  Backend backend;     ///< whose answer this is
  bool available;      ///< linked into or loaded by this process
  std::string reason;  ///< empty when it can serve the call, else why not, in one line
};

/// What kAuto would choose for a call, and each backend's verdict. No backend ever falls back
/// silently: an explicit backend that cannot serve a call is an error with the same reason.
struct BackendChoice {
  Backend chosen = Backend::kAuto;       ///< kAuto when none can
  std::vector<BackendVerdict> verdicts;  ///< one per backend, in the order kAuto tries them
};

/// The backends present in this process, in the order kAuto tries them.
std::vector<Backend> available_backends();

}  // namespace kda
