/// Where a run computes: the host or one GPU.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "train/device_name.h"

namespace kda::train {

struct DeviceChoice {
  c10::Device device = c10::kCPU;
  std::string text = "cpu";  ///< "cpu", "cuda:0 (NVIDIA H200)"; with "auto" also why
};

/// "auto", "cpu", "cuda" (the first GPU) or "cuda:N". "auto" takes the first GPU when there are a
/// driver, a GPU and the CUDA library, else the host, and says why. A GPU that was asked for and is
/// not there is kUnsupported, never the host instead; another word is kInvalidArgument.
/// Loads the CUDA library, hence must come before any other use of torch in the process.
DeviceChoice choose_device(const std::string& name);

/// Refuses a backend of the operator (`--backend`) that cannot compute on the device: kUnsupported;
/// an unknown name is kInvalidArgument. "auto" always fits.
void check_backend(const std::string& backend, const DeviceChoice& device);

/// Waits until the device has done all that it was given; nothing to wait for on the host.
void synchronize(c10::Device device);

/// Bytes of GPU memory {free, total}, as the driver says; {0, 0} for the host.
struct DeviceMemory {
  std::int64_t free = 0;
  std::int64_t total = 0;
};
DeviceMemory device_memory(c10::Device device);

}  // namespace kda::train
