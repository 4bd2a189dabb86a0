#include "train/evaluate.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <numbers>

#include "kda/error.h"
#include "train/signals.h"

namespace kda::train {
namespace {

at::Tensor tensor_of(const std::vector<std::int64_t>& values, at::IntArrayRef shape) {
  at::Tensor tensor = at::empty(shape, at::kLong);
  std::memcpy(tensor.mutable_data_ptr(), values.data(), values.size() * sizeof(std::int64_t));
  return tensor;
}

}  // namespace

BatchTensors to_tensors(const text::PackedBatch& batch) {
  const auto num_starts = static_cast<std::int64_t>(batch.cu_seqlens.size());
  return {{tensor_of(batch.inputs, {batch.rows, batch.seq_len}),
           tensor_of(batch.cu_seqlens, {num_starts})},
          tensor_of(batch.targets, {batch.rows, batch.seq_len})};
}

EvalResult evaluate(const model::CausalLM& model,
                    const std::shared_ptr<const text::TokenDataset>& data,
                    const text::Tokenizer& tokenizer, const EvalOptions& options,
                    Reporter& reporter) {
  const auto start = std::chrono::steady_clock::now();
  text::PackingOptions packing;
  packing.seq_len = options.seq_len;
  packing.rows = options.batch;
  packing.token_bytes = tokenizer.token_bytes();
  const std::int64_t pad =
      tokenizer.info().pad_id >= 0 ? tokenizer.info().pad_id : tokenizer.info().eos_id;
  text::HeldOutIterator batches(data, packing, pad);
  const std::int64_t available = (batches.total_rows() + options.batch - 1) / options.batch;
  const std::int64_t tokens_per_batch = options.batch * options.seq_len;
  std::int64_t wanted = available;
  if (options.max_tokens > 0) {
    wanted = std::min(available, (options.max_tokens + tokens_per_batch - 1) / tokens_per_batch);
  }
  EvalResult result;
  double sum = 0;
  std::int64_t done = 0;
  ProgressRecord progress{"evaluating", 0, static_cast<double>(wanted * tokens_per_batch), 0,
                          false};
  for (std::int64_t i = 0; i < available && done < wanted; ++i) {
    const std::optional<text::PackedBatch> batch = batches.next();
    if (!batch) break;
    // Evenly spaced, so that a part of the file stands for all of it: files are sorted by source.
    if ((i + 1) * wanted / available == i * wanted / available) continue;
    poll_stop();
    ++done;
    if (batch->num_targets == 0) continue;
    const BatchTensors tensors = to_tensors(*batch);
    const at::Tensor losses = model.token_losses(tensors.packed, tensors.targets);
    const double batch_sum = at::sum(losses, at::kDouble).item<double>();
    if (!std::isfinite(batch_sum)) {
      throw Error(ErrorCode::kNonFinite, "held-out loss is not finite: first bad activation: " +
                                             model.first_nonfinite(tensors.packed));
    }
    sum += batch_sum;
    result.targets += batch->num_targets;
    result.bytes += batch->num_target_bytes;
    progress.done = static_cast<double>(done * tokens_per_batch);
    progress.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    reporter.progress(progress);
  }
  if (result.targets == 0) {
    throw Error(ErrorCode::kInvalidArgument, "held-out text: it has no token to predict");
  }
  result.loss = sum / static_cast<double>(result.targets);
  if (result.bytes > 0) {
    result.bits_per_byte = sum / std::numbers::ln2 / static_cast<double>(result.bytes);
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace kda::train
