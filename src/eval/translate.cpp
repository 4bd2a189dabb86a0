#include "eval/translate.h"

#include <algorithm>
#include <numeric>

#include "eval/beam_search.h"
#include "kda/error.h"
#include "text/prompts.h"

namespace kda::eval {
namespace {

std::string decode(const text::Tokenizer& tokenizer, const std::vector<std::int64_t>& ids) {
  std::vector<std::int32_t> known;
  for (const std::int64_t id : ids) {
    // A vocabulary padded beyond the tokenizer's has ids without text.
    if (id < tokenizer.vocab_size()) known.push_back(static_cast<std::int32_t>(id));
  }
  return text::answer_text(tokenizer.decode(known));
}

}  // namespace

std::vector<Translation> translate(const model::CausalLM& model, const text::Tokenizer& tokenizer,
                                   const std::vector<std::string>& sources, text::Language target,
                                   const TranslateOptions& options,
                                   const TranslateProgress& progress) {
  if (options.batch < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "batch: expected >= 1, got " + std::to_string(options.batch));
  }
  std::vector<std::vector<std::int64_t>> prompts;
  for (const std::string& source : sources) {
    const auto ids = text::encode_prompt(tokenizer, text::translation_prompt(target, source));
    prompts.emplace_back(ids.begin(), ids.end());
  }
  std::vector<std::size_t> order(sources.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // Sentences of equal length end at about the same time.
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return prompts[a].size() < prompts[b].size();
  });
  const std::vector<std::int32_t> stops = text::answer_stop_ids(tokenizer);

  std::vector<Translation> results(sources.size());
  const auto batch = static_cast<std::size_t>(options.batch);
  for (std::size_t begin = 0; begin < order.size(); begin += batch) {
    const std::size_t end = std::min(begin + batch, order.size());
    std::vector<std::vector<std::int64_t>> rows;
    for (std::size_t i = begin; i < end; ++i)
      rows.push_back(prompts[order[i]]);
    const auto report = [&] {
      if (progress) progress(static_cast<std::int64_t>(begin));
    };
    if (options.beam == 1) {
      model::GenerateOptions how;
      how.max_new_tokens = options.max_new_tokens;
      how.stop_ids.assign(stops.begin(), stops.end());
      const auto made = model::generate(model, rows, how, [&](std::int64_t, std::int64_t) {
        report();
        return true;
      });
      for (std::size_t i = begin; i < end; ++i) {
        const model::GeneratedRow& row = made[i - begin];
        results[order[i]] = {decode(tokenizer, row.ids), static_cast<std::int64_t>(row.ids.size()),
                             row.reason};
      }
    } else {
      BeamOptions how;
      how.beam = options.beam;
      how.length_penalty = options.length_penalty;
      how.max_new_tokens = options.max_new_tokens;
      how.stop_ids.assign(stops.begin(), stops.end());
      const auto made = beam_search(model, rows, how, report);
      for (std::size_t i = begin; i < end; ++i) {
        const BeamHypothesis& row = made[i - begin];
        results[order[i]] = {decode(tokenizer, row.ids), static_cast<std::int64_t>(row.ids.size()),
                             row.reason};
      }
    }
    if (progress) progress(static_cast<std::int64_t>(end));
  }
  return results;
}

}  // namespace kda::eval
