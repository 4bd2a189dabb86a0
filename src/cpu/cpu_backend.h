// The cpu backend's function table.
#pragma once

#include "dispatch/backend_table.h"

namespace kda::cpu {

const BackendTable* backend_table();

}  // namespace kda::cpu
