#include "text/prompts.h"

#include <array>
#include <span>

#include "kda/error.h"

namespace kda::text {
namespace {

constexpr std::string_view kAskFor[] = {"Translate to English:", "Translate to Chinese:"};
constexpr std::string_view kBlank = " \t";
constexpr std::string_view kSpace = " \t\n\v\f\r";

std::string_view trim(std::string_view text, std::string_view what) {
  const auto begin = text.find_first_not_of(what);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(what) - begin + 1);
}

/// Bytes of the line break that `text` begins with, 0 when it does not.
std::size_t line_break(std::string_view text) {
  if (text.front() >= '\n' && text.front() <= '\r') return 1;
  if (text.starts_with("\u0085")) return 2;
  return text.starts_with("\u2028") || text.starts_with("\u2029") ? 3 : 0;
}

}  // namespace

std::string single_line(std::string_view text) {
  std::string line;
  bool after_break = false;
  while (!text.empty()) {
    const std::size_t length = line_break(text);
    if (length == 0) {
      line += text.front();
    } else if (!after_break) {
      line += ' ';
    }
    after_break = length > 0;
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return std::string(trim(line, kBlank));
}

std::string translation_prompt(Language target, std::string_view source) {
  // Always two lines, unlike instruction_prompt: an empty source is a fault of the data, not
  // another kind of prompt.
  std::string prompt(kAskFor[static_cast<std::size_t>(target)]);
  return prompt + "\n" + single_line(source) + "\n";
}

std::string instruction_prompt(std::string_view instruction, std::string_view input) {
  std::string prompt = std::string(trim(instruction, kSpace)) + "\n";
  const std::string_view body = trim(input, kSpace);
  if (!body.empty()) prompt += std::string(body) + "\n";
  return prompt;
}

std::optional<ParsedPrompt> parse_translation_prompt(std::string_view text) {
  for (const Language target : {Language::kEnglish, Language::kChinese}) {
    const std::string_view head = kAskFor[static_cast<std::size_t>(target)];
    if (!text.starts_with(head) || text.substr(head.size(), 1) != "\n") continue;
    text.remove_prefix(head.size() + 1);
    const auto end = text.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    return ParsedPrompt{target, text.substr(0, end), text.substr(end + 1)};
  }
  return std::nullopt;
}

std::vector<std::int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view prompt) {
  std::vector<std::int32_t> ids;
  if (tokenizer.info().bos_id >= 0) ids.push_back(tokenizer.info().bos_id);
  const std::vector<std::int32_t> body = tokenizer.encode(prompt);
  ids.insert(ids.end(), body.begin(), body.end());
  return ids;
}

EncodedExample encode_example(const Tokenizer& tokenizer, std::string_view prompt,
                              std::string_view answer) {
  if (tokenizer.eos_id() < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "tokenizer: expected one with EOS, or no answer could ever end; got none");
  }
  EncodedExample example{encode_prompt(tokenizer, prompt), 0};
  example.prompt_tokens = example.ids.size();
  const std::vector<std::int32_t> body = tokenizer.encode(answer);
  example.ids.insert(example.ids.end(), body.begin(), body.end());
  example.ids.push_back(tokenizer.eos_id());
  return example;
}

EncodedExample translation_example(const Tokenizer& tokenizer, Language target,
                                   std::string_view source, std::string_view translation) {
  return encode_example(tokenizer, translation_prompt(target, source), single_line(translation));
}

std::vector<std::int32_t> answer_stop_ids(const Tokenizer& tokenizer) {
  std::vector<std::int32_t> stops;
  if (tokenizer.eos_id() >= 0) stops.push_back(tokenizer.eos_id());
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::array one{id};
    if (tokenizer.decode(one).find('\n') != std::string::npos) stops.push_back(id);
  }
  return stops;
}

std::string answer_text(std::string_view continuation) {
  return std::string(trim(continuation.substr(0, continuation.find('\n')), kSpace));
}

}  // namespace kda::text
