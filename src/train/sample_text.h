/// Text continued by a model, decoded as it comes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "model/causal_lm.h"
#include "model/generate.h"
#include "text/tokenizer.h"

namespace kda::train {

struct TextSampleOptions {
  model::SamplingOptions sampling;
  std::int64_t max_new_tokens = 128;
  std::uint64_t row = 0;  ///< number of the sample: equal seeds, different rows, different text
};

struct TextSample {
  std::string text;  ///< the continuation only, valid UTF-8
  std::int64_t prompt_tokens = 0;
  std::int64_t new_tokens = 0;
  model::FinishReason reason = model::FinishReason::kLength;
};

/// Receives text as soon as its characters are complete; never a part of a UTF-8 character.
using TextCallback = std::function<void(std::string_view)>;

/// Continues `prompt`, which starts a document: BOS goes first when the tokenizer has one. Stops at
/// EOS, after `max_new_tokens`, or within a token of a stop request (reason kCancelled). Throws
/// kInvalidArgument for an empty prompt with a tokenizer that has no BOS, and for text that is not
/// UTF-8; kNonFinite naming the layer.
TextSample sample_text(const model::CausalLM& model, const text::Tokenizer& tokenizer,
                       std::string_view prompt, const TextSampleOptions& options,
                       const TextCallback& on_text = {});

}  // namespace kda::train
