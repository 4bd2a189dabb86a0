// The ref backend's function table.
#pragma once

#include "dispatch/backend_table.h"

namespace kda::ref {

const BackendTable* backend_table();

}  // namespace kda::ref
