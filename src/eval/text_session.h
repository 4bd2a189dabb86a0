/// A text in progress: given text and generated text in turn, streamed, saved and taken up again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "model/causal_lm.h"
#include "model/decode_state.h"
#include "model/generate.h"
#include "text/tokenizer.h"

namespace kda::eval {

struct ContinueOptions {
  model::SamplingOptions sampling;
  std::int64_t max_new_tokens = 128;
  std::uint64_t row = 0;               ///< number of the sample in the generator's counter
  std::vector<std::int32_t> stop_ids;  ///< empty: EOS, where the tokenizer has one
  bool stop_at_eos = true;             ///< with no `stop_ids`; false: only the limit ends
  std::int64_t prefill_piece = 1024;   ///< tokens of the prompt fed at once
};

struct Continuation {
  std::string text;                ///< what was added, valid UTF-8, without the stop token
  std::int64_t prompt_tokens = 0;  ///< fed before the first new one
  std::int64_t new_tokens = 0;
  model::FinishReason reason = model::FinishReason::kLength;
};

/// Called after every token with the text that became complete, which may be none. Returning false
/// ends the continuation (reason kCancelled).
using TextSink = std::function<bool(std::string_view)>;

/// Continues many texts at once, each on its own and as if BOS stood before it; row i is sample
/// `options.row` + i. Stops as `TextSession` does. `on_token` is called after every token and may
/// throw to stop all.
std::vector<Continuation> continue_texts(const model::CausalLM& model,
                                         const text::Tokenizer& tokenizer,
                                         const std::vector<std::string>& prompts,
                                         const ContinueOptions& options,
                                         const std::function<void()>& on_token = {});

/// The model and the tokenizer must outlive the session.
class TextSession {
 public:
  /// An empty text. BOS goes before it when the tokenizer has one.
  TextSession(const model::CausalLM& model, const text::Tokenizer& tokenizer);

  /// Adds text that is given. It is encoded on its own. Throws kInvalidArgument for text that is
  /// not UTF-8.
  void append(std::string_view text);

  /// Continues. What was generated belongs to the text from then on, the stop token does not.
  /// Cutting a continuation into several calls changes nothing: greedy or drawn, the tokens are
  /// those of one long call (the generator counts the draws of the session). Throws
  /// kInvalidArgument when there is nothing to continue from: an empty text without BOS, or one
  /// that a stop token has ended and nothing was appended to since. kNonFinite names the layer.
  Continuation continue_text(const ContinueOptions& options, const TextSink& sink = {});

  /// The whole text so far, given and generated.
  std::string text() const;
  /// Ids of the text, BOS included.
  const std::vector<std::int64_t>& ids() const { return ids_; }
  /// Tokens that the decode state holds; the others are fed by the next continuation.
  std::int64_t fed() const;

  /// Writes a folder: session.json (ids, draws, hash of the tokenizer) and the decode state with
  /// all that the model remembers. A saved session replaces an older one in one step; another
  /// folder that is not empty is refused.
  void save(const std::filesystem::path& folder) const;
  /// Throws kIo for a damaged folder, kInvalidArgument for the session of another model or
  /// tokenizer.
  static TextSession load(const std::filesystem::path& folder, const model::CausalLM& model,
                          const text::Tokenizer& tokenizer);

 private:
  const model::CausalLM* model_;
  const text::Tokenizer* tokenizer_;
  model::DecodeState state_;
  std::vector<std::int64_t> ids_;
  std::uint64_t draws_ = 0;
};

}  // namespace kda::eval
