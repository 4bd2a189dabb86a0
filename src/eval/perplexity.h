/// Cross entropy of a text, in every unit that people compare.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "model/causal_lm.h"
#include "text/packing.h"
#include "text/tokenizer.h"

namespace kda::eval {

struct PerplexityOptions {
  std::int64_t batch = 4;       ///< rows at once; does not change the result beyond rounding
  std::int64_t seq_len = 512;   ///< tokens per row; a longer document goes on without its past
  std::int64_t max_tokens = 0;  ///< predicted tokens, exactly (all when there are fewer); 0: all
};

/// All numbers are of the same tokens: those that are predicted, EOS included, padding and the
/// first token of each document not.
struct Perplexity {
  double loss = 0;             ///< mean cross entropy, nats per token
  double bits_per_byte = 0;    ///< sum / ln 2 / bytes; EOS is paid for and has no bytes
  std::int64_t tokens = 0;     ///< predicted tokens
  std::int64_t bytes = 0;      ///< UTF-8 bytes of those tokens
  std::int64_t available = 0;  ///< predicted tokens that the text has in all

  double perplexity() const;  ///< exp(loss)
};

/// Called before every batch with the tokens done and wanted; may throw to stop.
using PerplexityProgress = std::function<void(std::int64_t done, std::int64_t wanted)>;

/// With `max_tokens` the rows are evenly spaced over the text and the last one is cut, so a part
/// stands for all of it and the count is exact. Throws kNonFinite naming the layer, and
/// kInvalidArgument for a text without a token to predict and options out of range.
Perplexity measure_perplexity(const model::CausalLM& model,
                              const std::shared_ptr<const text::TokenDataset>& data,
                              const text::Tokenizer& tokenizer, const PerplexityOptions& options,
                              const PerplexityProgress& progress = {});

}  // namespace kda::eval
