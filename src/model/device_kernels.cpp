#include "model/device_kernels.h"

#include <dlfcn.h>

#include <string>

#include "binding/functional.h"
#include "kda/error.h"
#include "kda/version.h"

namespace kda::model {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw Error(
      ErrorCode::kUnsupported,
      "the layer kernels for CUDA could not be loaded (build them with -DKDA_CUDA=ON): " + why);
}

const DeviceKernels* load() {
  // Beside the operator's library, where the build and the installation put it.
  Dl_info operators{};
  std::string folder;
  if (dladdr(reinterpret_cast<void*>(&binding::load_cuda_library), &operators) != 0 &&
      operators.dli_fname != nullptr) {
    folder = operators.dli_fname;
    folder.erase(folder.find_last_of('/') + 1);
  }
  void* library = dlopen((folder + "libkda_model_cuda.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) refuse(dlerror());
  using Kernels = const DeviceKernels* (*)();
  using Version = const char* (*)();
  const auto kernels = reinterpret_cast<Kernels>(dlsym(library, "kda_model_cuda_kernels"));
  const auto version_of = reinterpret_cast<Version>(dlsym(library, "kda_model_cuda_version"));
  if (kernels == nullptr || version_of == nullptr)
    refuse(folder + "libkda_model_cuda.so is another file");
  const std::string found = version_of();
  if (found != version()) {
    refuse(folder + "libkda_model_cuda.so is of version " + found + ", this is " + version());
  }
  return kernels();
}

}  // namespace

const DeviceKernels& device_kernels() {
  static const DeviceKernels* kernels = load();
  return *kernels;
}

}  // namespace kda::model
