/// Translation of many sentences: prompt, decoding, answer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/causal_lm.h"
#include "model/generate.h"
#include "text/language.h"
#include "text/tokenizer.h"

namespace kda::eval {

struct TranslateOptions {
  std::int64_t batch = 32;            ///< sentences decoded at once
  std::int64_t beam = 1;              ///< 1: greedy
  double length_penalty = 1.0;        ///< see BeamOptions
  std::int64_t max_new_tokens = 256;  ///< limit of one answer
};

struct Translation {
  std::string text;         ///< one line, trimmed; may be empty
  std::int64_t tokens = 0;  ///< produced, without the stop token
  model::FinishReason reason = model::FinishReason::kLength;
};

/// Called during the work with the number of sentences that are done, at least once per token; may
/// throw to stop it.
using TranslateProgress = std::function<void(std::int64_t done)>;

/// Translates every source into `target` with the prompt of training (text/prompts.h). Decoding
/// stops at EOS and at a line feed. Sentences are sorted by length into batches; results come in
/// the order given and do not depend on the batch size, up to rounding. Throws kInvalidArgument for
/// options out of range and text that is not UTF-8, kNonFinite naming the layer.
std::vector<Translation> translate(const model::CausalLM& model, const text::Tokenizer& tokenizer,
                                   const std::vector<std::string>& sources, text::Language target,
                                   const TranslateOptions& options,
                                   const TranslateProgress& progress = {});

}  // namespace kda::eval
