// Choice of a backend among the registered ones.
#pragma once

#include "dispatch/backend_table.h"

namespace kda::dispatch {

// The verdict of every backend, in the order kAuto tries them.
BackendChoice explain(Op op, const core::Problem& problem);

// The table of the CUDA backend, null while its library is not loaded.
const BackendTable* cuda_table();

// The table to call: the requested backend, or the first that can serve the call for kAuto.
// Throws kUnsupported with every reason.
const BackendTable& select(Op op, const core::Problem& problem, const Context& context);

}  // namespace kda::dispatch
