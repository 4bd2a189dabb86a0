/// Cross entropy and bits per byte of held-out text.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/causal_lm.h"
#include "text/example_packing.h"
#include "text/packing.h"
#include "text/tokenizer.h"
#include "train/report.h"

namespace kda::train {

struct EvalOptions {
  std::int64_t batch = 4;
  std::int64_t seq_len = 256;
  std::int64_t max_tokens = 0;  ///< 0: all; else about this many, in evenly spaced batches
};

struct EvalResult {
  double loss = 0;           ///< mean over the targets, natural log
  double bits_per_byte = 0;  ///< sum / ln 2 / bytes; EOS is paid for and has no bytes
  std::int64_t targets = 0;
  std::int64_t bytes = 0;  ///< UTF-8 bytes of the targets
  double seconds = 0;
};

/// The same batches in the same order every time. Polls for signals at every batch (throws
/// Interrupted). Throws kNonFinite naming the layer, and kInvalidArgument when there is no target.
EvalResult evaluate(const model::CausalLM& model,
                    const std::shared_ptr<const text::TokenDataset>& data,
                    const text::Tokenizer& tokenizer, const EvalOptions& options,
                    Reporter& reporter);

/// The same for answers: the prompts' tokens are not counted. A batch has at most batch x seq_len
/// tokens.
EvalResult evaluate_examples(const model::CausalLM& model, const text::ExampleSet& examples,
                             const text::Tokenizer& tokenizer, const EvalOptions& options,
                             Reporter& reporter);

/// The model's view of a packed batch.
struct BatchTensors {
  model::PackedIds packed;
  at::Tensor targets;  ///< [B,T] i64
};
BatchTensors to_tensors(const text::PackedBatch& batch);

}  // namespace kda::train
