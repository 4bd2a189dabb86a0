#include <dlfcn.h>

#include <string>

#include "binding/functional.h"
#include "kda/error.h"

namespace kda::binding {

void load_cuda_library() {
  // Beside this library, where the build and the installation put it.
  Dl_info self{};
  std::string folder;
  if (dladdr(reinterpret_cast<void*>(&load_cuda_library), &self) != 0 &&
      self.dli_fname != nullptr) {
    folder = self.dli_fname;
    folder.erase(folder.find_last_of('/') + 1);
  }
  const std::string path = folder + "libkda_torch_cuda.so";
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "the CUDA library could not be loaded (build it with -DKDA_CUDA=ON): " +
                    std::string(dlerror()));
  }
}

}  // namespace kda::binding
