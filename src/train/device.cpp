#include "train/device.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include "binding/functional.h"
#include "kda/backend.h"
#include "kda/error.h"

namespace kda::train {
namespace {

/// The driver's library, opened on demand: counting GPUs with it costs milliseconds where loading
/// torch's CUDA parts costs seconds, and it works in programs that are not built with CUDA.
class Driver {
 public:
  Driver() : library_(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) {
      fault_ = "no NVIDIA driver (libcuda.so.1) is installed";
      return;
    }
    const int status = call<int(unsigned)>("cuInit", 0U);
    if (status != 0) {
      fault_ = "the NVIDIA driver finds no usable GPU (cuInit: " + std::to_string(status) + ")";
      return;
    }
    if (call<int(int*)>("cuDeviceGetCount", &count_) != 0) count_ = 0;
    if (count_ == 0) fault_ = "the NVIDIA driver sees no GPU";
  }

  const std::string& fault() const { return fault_; }
  int count() const { return count_; }

  std::string name(int index) const {
    char text[128] = {};
    int device = 0;
    if (call<int(int*, int)>("cuDeviceGet", &device, index) != 0) return "?";
    call<int(char*, int, int)>("cuDeviceGetName", text, static_cast<int>(sizeof text) - 1, device);
    return text;
  }

  DeviceMemory memory() const {
    std::size_t free = 0;
    std::size_t total = 0;
    if (call<int(std::size_t*, std::size_t*)>("cuMemGetInfo_v2", &free, &total) != 0) return {};
    return {static_cast<std::int64_t>(free), static_cast<std::int64_t>(total)};
  }

 private:
  template <class Signature, class... Arguments>
  int call(const char* symbol, Arguments... arguments) const {
    auto* function = reinterpret_cast<Signature*>(::dlsym(library_, symbol));
    return function == nullptr ? -1 : function(arguments...);
  }

  void* library_;
  std::string fault_;
  int count_ = 0;
};

const Driver& driver() {
  static const Driver opened;
  return opened;
}

DeviceChoice gpu(int index) {
  return {c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index)),
          "cuda:" + std::to_string(index) + " (" + driver().name(index) + ")"};
}

}  // namespace

DeviceChoice choose_device(const std::string& name) {
  check_device_name(name);
  if (name == "cpu") return {c10::kCPU, "cpu"};
  const bool is_auto = name == "auto";
  const int index = is_auto ? 0 : *gpu_index(name);
  std::string fault = driver().fault();
  if (fault.empty() && index >= driver().count()) {
    fault = "the machine has " + std::to_string(driver().count()) + " GPU" +
            (driver().count() == 1 ? "" : "s") + ", numbered from 0";
  }
  if (fault.empty()) {
    try {
      binding::load_cuda_library();
      return gpu(index);
    } catch (const Error& error) {
      fault = is_auto ? "this build has no CUDA library" : error.what();
    }
  }
  if (is_auto) return {c10::kCPU, "cpu (auto: " + fault + ")"};
  throw Error(ErrorCode::kUnsupported, "--device " + name + ": " + fault);
}

void check_backend(const std::string& backend, const DeviceChoice& device) {
  if (backend == "auto") return;
  Backend wanted = Backend::kAuto;
  try {
    wanted = backend_from_name(backend);
  } catch (const Error& error) {
    throw Error(error.code(), std::string("--") + error.what());
  }
  if ((wanted == Backend::kCuda) == device.device.is_cuda()) return;
  throw Error(ErrorCode::kUnsupported,
              "--backend " + backend + ": it computes " +
                  (device.device.is_cuda() ? "on the host (--device cpu)" : "on a GPU") +
                  ", but the device is " + device.text);
}

void synchronize(c10::Device device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

DeviceMemory device_memory(c10::Device device) {
  if (device.is_cpu()) return {};
  // The driver answers for the device whose context is current: make it this one.
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Device before = guard.exchangeDevice(device);
  synchronize(device);
  const DeviceMemory memory = driver().memory();
  guard.uncheckedSetDevice(before);
  return memory;
}

}  // namespace kda::train
