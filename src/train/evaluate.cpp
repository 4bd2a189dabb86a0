#include "train/evaluate.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numbers>
#include <optional>

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

namespace {

/// Sums over `wanted` of `available` batches, evenly spaced, so that a part of the file stands for
/// all of it: files are sorted by source. `batch_at` gives the next batch when asked for the i-th.
template <class BatchAt>
EvalResult sum_over(const model::CausalLM& model, std::int64_t available, std::int64_t wanted,
                    std::int64_t tokens_per_batch, Reporter& reporter, const BatchAt& batch_at) {
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  EvalResult result;
  double sum = 0;
  std::int64_t done = 0;
  ProgressRecord progress{"evaluating", 0, static_cast<double>(wanted * tokens_per_batch), 0,
                          false};
  for (std::int64_t i = 0; i < available && done < wanted; ++i) {
    const bool chosen = (i + 1) * wanted / available != i * wanted / available;
    const std::optional<text::PackedBatch> batch = batch_at(i, chosen);
    if (!chosen) continue;
    if (!batch) break;
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
    progress.seconds = seconds();
    reporter.progress(progress);
  }
  if (result.targets == 0) {
    throw Error(ErrorCode::kInvalidArgument, "held-out text: it has no token to predict");
  }
  result.loss = sum / static_cast<double>(result.targets);
  if (result.bytes > 0) {
    result.bits_per_byte = sum / std::numbers::ln2 / static_cast<double>(result.bytes);
  }
  result.seconds = seconds();
  return result;
}

std::int64_t wanted_batches(std::int64_t available, std::int64_t tokens_per_batch,
                            std::int64_t max_tokens) {
  if (max_tokens == 0) return available;
  return std::min(available, (max_tokens + tokens_per_batch - 1) / tokens_per_batch);
}

}  // namespace

EvalResult evaluate(const model::CausalLM& model,
                    const std::shared_ptr<const text::TokenDataset>& data,
                    const text::Tokenizer& tokenizer, const EvalOptions& options,
                    Reporter& reporter) {
  text::PackingOptions packing;
  packing.seq_len = options.seq_len;
  packing.rows = options.batch;
  packing.token_bytes = tokenizer.token_bytes();
  const std::int64_t pad =
      tokenizer.info().pad_id >= 0 ? tokenizer.info().pad_id : tokenizer.info().eos_id;
  text::HeldOutIterator batches(data, packing, pad);
  const std::int64_t available = (batches.total_rows() + options.batch - 1) / options.batch;
  const std::int64_t tokens = options.batch * options.seq_len;
  return sum_over(model, available, wanted_batches(available, tokens, options.max_tokens), tokens,
                  reporter, [&](std::int64_t, bool) { return batches.next(); });
}

EvalResult evaluate_examples(const model::CausalLM& model, const text::ExampleSet& examples,
                             const text::Tokenizer& tokenizer, const EvalOptions& options,
                             Reporter& reporter) {
  const std::int64_t tokens = options.batch * options.seq_len;
  const auto batches = text::held_out_batches(examples, std::max(tokens, examples.longest()));
  const auto available = static_cast<std::int64_t>(batches.size());
  return sum_over(model, available, wanted_batches(available, tokens, options.max_tokens), tokens,
                  reporter, [&](std::int64_t i, bool chosen) -> std::optional<text::PackedBatch> {
                    if (!chosen) return std::nullopt;
                    text::PackedBatch batch;
                    batch.rows = 1;
                    batch.cu_seqlens.push_back(0);
                    for (const std::uint32_t e : batches[static_cast<std::size_t>(i)])
                      examples.append(e, tokenizer.token_bytes(), batch);
                    return batch;
                  });
}

}  // namespace kda::train
