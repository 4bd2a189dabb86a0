#include "train/sample_text.h"

#include <vector>

#include "kda/error.h"
#include "train/signals.h"

namespace kda::train {

TextSample sample_text(const model::CausalLM& model, const text::Tokenizer& tokenizer,
                       std::string_view prompt, const TextSampleOptions& options,
                       const TextCallback& on_text) {
  const text::TokenizerInfo& info = tokenizer.info();
  std::vector<std::int64_t> ids;
  if (info.bos_id >= 0) ids.push_back(info.bos_id);
  for (std::int32_t id : tokenizer.encode(prompt))
    ids.push_back(id);
  if (ids.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "prompt: expected some text (the tokenizer has no BOS to start from), got none");
  }
  model::GenerateOptions generate;
  generate.sampling = options.sampling;
  generate.max_new_tokens = options.max_new_tokens;
  generate.first_row = options.row;
  if (info.eos_id >= 0) generate.stop_ids.push_back(info.eos_id);

  TextSample sample;
  sample.prompt_tokens = static_cast<std::int64_t>(ids.size());
  text::StreamDecoder decoder(tokenizer);
  // A decoder drops the space that a tokenizer puts before a text's first word; here the text goes
  // on after the prompt, whose own pieces therefore pass through the same decoder first.
  for (std::int64_t id : ids)
    decoder.add(static_cast<std::int32_t>(id));
  const auto emit = [&](const std::string& text) {
    if (text.empty()) return;
    sample.text += text;
    if (on_text) on_text(text);
  };
  const std::vector<model::GeneratedRow> rows =
      model::generate(model, {ids}, generate, [&](std::int64_t, std::int64_t id) {
        ++sample.new_tokens;
        // A vocabulary padded beyond the tokenizer's has ids without text.
        if (id < tokenizer.vocab_size()) emit(decoder.add(static_cast<std::int32_t>(id)));
        return stop_signal() == 0;
      });
  emit(decoder.finish());
  sample.reason = rows.front().reason;
  return sample;
}

}  // namespace kda::train
