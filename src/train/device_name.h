/// Names of devices, as people type them. No torch: options are read where there is none.
#pragma once

#include <optional>
#include <string>

namespace kda::train {

/// The number behind "cuda:", 0 for "cuda"; nothing for what is no GPU's name.
std::optional<int> gpu_index(const std::string& name);

/// "auto", "cpu", "cuda" or "cuda:N"; throws kInvalidArgument naming --device for anything else.
void check_device_name(const std::string& name);

}  // namespace kda::train
