/// Beam search over a batch of prompts, in token ids.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/causal_lm.h"
#include "model/generate.h"

namespace kda::eval {

struct BeamOptions {
  std::int64_t beam = 4;               ///< hypotheses kept for each prompt, >= 1
  double length_penalty = 1.0;         ///< a in sum(log p) / length^a; 0: plain sums
  std::int64_t max_new_tokens = 256;   ///< >= 0
  std::vector<std::int64_t> stop_ids;  ///< end a hypothesis; may be empty
};

struct BeamHypothesis {
  std::vector<std::int64_t> ids;  ///< without the stop token
  double log_prob = 0;            ///< of the ids, and of the stop token where there is one
  double score = 0;               ///< log_prob / length^a; the stop token counts as length
  model::FinishReason reason = model::FinishReason::kLength;
};

/// The best hypothesis of every prompt. Rows do not influence each other. `beam` 1 is greedy
/// decoding.
///
/// A step extends each live hypothesis of a prompt by its likeliest tokens and keeps the best
/// `beam` of the extensions; a stop token ends a hypothesis when it is among the best `beam`. A
/// prompt is done when `beam` hypotheses have ended and the best live one scores no better than
/// the worst of them. Hypotheses that reach the limit count only where none has ended. Equal scores
/// go to the lower hypothesis, then to the lower id.
///
/// `poll` is called at every step and may throw. Throws kInvalidArgument for an empty prompt and
/// options out of range, kNonFinite naming the layer.
std::vector<BeamHypothesis> beam_search(const model::CausalLM& model,
                                        const std::vector<std::vector<std::int64_t>>& prompts,
                                        const BeamOptions& options,
                                        const std::function<void()>& poll = {});

}  // namespace kda::eval
