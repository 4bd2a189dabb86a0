/// The generation loop, in token ids: it knows no tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/causal_lm.h"
#include "model/sampler.h"

namespace kda::model {

enum class FinishReason : std::uint8_t {
  kStop,       ///< a stop token was produced (it is not part of the output)
  kLength,     ///< max_new_tokens reached
  kCancelled,  ///< the callback returned false
};

/// "stop", "length", "cancelled".
const char* name_of(FinishReason reason);

struct GenerateOptions {
  SamplingOptions sampling;
  std::int64_t max_new_tokens = 128;   ///< >= 0
  std::vector<std::int64_t> stop_ids;  ///< usually {config.eos_id}; may be empty
  std::int64_t prefill_piece = 1024;   ///< tokens per row fed at once; bounds the memory
  std::uint64_t first_row = 0;         ///< number of row 0 in the sampler's counter
  std::uint64_t first_draw = 0;        ///< number of the first draw of each row there
  /// Ids before each prompt that the repetition penalty looks at too; empty, or one list a row.
  std::vector<std::vector<std::int64_t>> history;
};

struct GeneratedRow {
  std::vector<std::int64_t> ids;  ///< new tokens, without the stop token
  FinishReason reason = FinishReason::kLength;
};

/// Called after every new token (not for stop tokens); false ends that row.
using TokenCallback = std::function<bool(std::int64_t row, std::int64_t id)>;

/// Continues every prompt. Rows do not influence each other's tokens. Throws kInvalidArgument for
/// an empty prompt or an id out of range, and kNonFinite with the name of the first layer whose
/// output is not finite.
std::vector<GeneratedRow> generate(const CausalLM& model,
                                   const std::vector<std::vector<std::int64_t>>& prompts,
                                   const GenerateOptions& options,
                                   const TokenCallback& on_token = {});

/// As above, from a state that already consumed some tokens: `prompts` holds what is still to be
/// fed (at least one token each), `state` is left after the last token that was fed.
std::vector<GeneratedRow> generate(const CausalLM& model, DecodeState& state,
                                   const std::vector<std::vector<std::int64_t>>& prompts,
                                   const GenerateOptions& options,
                                   const TokenCallback& on_token = {});

}  // namespace kda::model
