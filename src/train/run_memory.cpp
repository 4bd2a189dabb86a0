#include "train/run_memory.h"

#include <cmath>
#include <string>

#include "kda/error.h"
#include "train/process_memory.h"
#include "train/units.h"

namespace kda::train {
namespace {

// An estimate this many times the available memory is refused: the system would kill the run.
constexpr std::int64_t kHopeless = 2;
// A preset's recomputation is left out where the estimate without it takes at most this share of
// the memory; estimates were up to 15 % low.
constexpr double kRoomyShare = 0.75;

}  // namespace

model::MemoryEstimate memory_of(const RunPlan& plan) {
  const TrainOptions& o = plan.options;
  model::TrainingShape shape;
  shape.tokens_per_micro_batch = o.batch * o.seq_len;
  shape.sequences_per_micro_batch = std::llround(plan.data.sequences_per_micro_batch(o));
  shape.sizes_vary = o.task == Task::kSft;
  shape.compute = o.dtype == "bf16" ? DType::kBF16 : DType::kF32;
  shape.recompute_blocks = o.recompute;
  shape.on_cuda = plan.device.device.is_cuda();
  model::MemoryEstimate memory = model::estimate_training_memory(plan.model, shape);
  if (shape.on_cuda) memory.device_bytes += model::kCudaContextBytes;
  if (o.optimizer == "muon") {
    // One momentum where AdamW has two moments; layers are matrices but for a few vectors.
    const model::ParameterCount count = model::count_parameters(plan.model);
    memory.optimizer_bytes -= 4 * (count.attention + count.feed_forward);
  }
  return memory;
}

std::int64_t available_on(const RunPlan& plan) {
  return plan.device.device.is_cpu() ? available_bytes() : device_memory(plan.device.device).free;
}

void check_memory(const RunPlan& plan) {
  const std::int64_t wanted = memory_of(plan).total_bytes();
  const std::int64_t available = available_on(plan);
  if (available <= 0 || wanted <= kHopeless * available) return;
  throw Error(ErrorCode::kInvalidArgument,
              "--batch, --seq-len: expected a run that fits into memory, got one of about " +
                  short_bytes(static_cast<double>(wanted)) + " where " +
                  short_bytes(static_cast<double>(available)) + " are available; " + kMemoryAdvice);
}

void settle_recompute(RunPlan& plan) {
  if (plan.model.attn_res.enabled()) {
    plan.recompute_note = "on, the preset's default (attention residuals: never by memory)";
    return;
  }
  const auto available = static_cast<double>(available_on(plan));
  plan.options.recompute = false;
  const auto without = static_cast<double>(memory_of(plan).total_bytes());
  plan.options.recompute = without > kRoomyShare * available;
  plan.recompute_note =
      std::string(plan.options.recompute ? "on, the preset's default: about "
                                         : "off, though the preset's default is on: about ") +
      short_bytes(without) + " without it where " + short_bytes(available) +
      " are available; the results are the same bits";
}

}  // namespace kda::train
