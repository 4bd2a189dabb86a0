/// What a run takes of the memory, before it begins.
#pragma once

#include <cstdint>

#include "model/cost.h"
#include "train/run_plan.h"

namespace kda::train {

/// Bytes that training will take, by formula, and what its device has for it.
model::MemoryEstimate memory_of(const RunPlan& plan);
std::int64_t available_on(const RunPlan& plan);

/// What to do about a run that does not fit.
inline constexpr const char* kMemoryAdvice =
    "use a smaller --batch with a larger --grad-accum, or --recompute";

/// Throws kInvalidArgument for a run that is far beyond the memory: the system would kill it.
void check_memory(const RunPlan& plan);

/// Recomputation that only a preset asks for is left out where memory is plenty. Nothing else about
/// the run changes then: the gradients are the same bits, except with attention residuals, where
/// they are added in another order. There the preset decides.
void settle_recompute(RunPlan& plan);

}  // namespace kda::train
