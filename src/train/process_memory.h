/// Memory of this process and of the machine, in bytes; 0 where the system does not tell.
#pragma once

#include <cstdint>

namespace kda::train {

std::int64_t resident_bytes();
std::int64_t peak_resident_bytes();

/// What may still be allocated: the machine's available memory, or less under a cgroup limit.
std::int64_t available_bytes();

}  // namespace kda::train
