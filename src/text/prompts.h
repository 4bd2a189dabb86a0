/// The prompts of instruction training and of evaluation: the only place that knows their wording.
///
///     Translate to English:\n{source}\n{translation}EOS
///     Translate to Chinese:\n{source}\n{translation}EOS
///
/// Training and evaluation call the same functions, down to token ids, so a model is asked exactly
/// what it was taught. A prompt is always the same number of lines: line breaks inside a source or
/// a translation become spaces, so no text can end its own field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/language.h"
#include "text/tokenizer.h"

namespace kda::text {

/// Counts up with every change of the wording or of how it becomes tokens. A fine-tuned checkpoint
/// records it, and evaluation compares.
inline constexpr int kPromptVersion = 1;

/// Every run of line breaks (LF, CR, VT, FF, NEL, U+2028, U+2029) becomes one space; spaces and
/// tabs at both ends go. Anything else stays.
std::string single_line(std::string_view text);

/// The prompt that asks for a translation, up to where the translation begins.
std::string translation_prompt(Language target, std::string_view source);

/// The general form, of which a translation is one case: the instruction, the input when there is
/// one, each with a line break behind it. Their inner line breaks are kept.
std::string instruction_prompt(std::string_view instruction, std::string_view input);

/// What a translation prompt asks for; nothing when `text` does not begin with one.
struct ParsedPrompt {
  Language target = Language::kEnglish;
  std::string_view source;  ///< part of the text given
  std::string_view answer;  ///< what follows the prompt
};
std::optional<ParsedPrompt> parse_translation_prompt(std::string_view text);

/// Ids to continue: BOS when the tokenizer has one, then the prompt. May be empty for an empty
/// prompt without BOS.
std::vector<std::int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view prompt);

/// One example to learn from.
struct EncodedExample {
  std::vector<std::int32_t> ids;  ///< prompt, answer, EOS
  std::size_t prompt_tokens = 0;  ///< the first of them, which are not to be learnt
};

/// encode_prompt, then the answer and EOS. The answer is encoded on its own: its tokens never
/// depend on the prompt, and no token spans the border. Throws kInvalidArgument when the tokenizer
/// has no EOS.
EncodedExample encode_example(const Tokenizer& tokenizer, std::string_view prompt,
                              std::string_view answer);

/// encode_example of a translation pair, both sides on one line each.
EncodedExample translation_example(const Tokenizer& tokenizer, Language target,
                                   std::string_view source, std::string_view translation);

/// Ids that end an answer of one line: EOS and every piece with a line feed in it.
std::vector<std::int32_t> answer_stop_ids(const Tokenizer& tokenizer);

/// The answer in a decoded continuation: up to the first line feed, without white space around.
std::string answer_text(std::string_view continuation);

}  // namespace kda::text
