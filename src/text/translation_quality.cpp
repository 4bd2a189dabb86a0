#include "text/translation_quality.h"

#include <algorithm>

#include "kda/error.h"
#include "text/characters.h"
#include "text/chrf.h"

namespace kda::text {
namespace {

std::u32string dense(std::string_view text) {
  std::u32string characters = to_code_points(text);
  std::erase_if(characters, is_white_space);
  return characters;
}

/// Letters without case: a copy that lost its punctuation is a copy.
std::u32string letters(std::string_view text) {
  std::u32string out;
  for (const char32_t c : to_code_points(text)) {
    if (c >= U'A' && c <= U'Z') {
      out += c - U'A' + U'a';
    } else if (is_han(c) || is_latin(c) || is_other_letter(c) || (c >= U'0' && c <= U'9')) {
      out += c;
    }
  }
  return out;
}

bool is_copy(std::string_view source, std::string_view hypothesis,
             const SuccessThresholds& thresholds) {
  return letters(source) == letters(hypothesis) ||
         sentence_chrf(hypothesis, source) >= thresholds.copy_chrf;
}

bool is_loop(std::string_view text, const SuccessThresholds& thresholds) {
  return repeated_share(text, thresholds) >= thresholds.min_repeated_share;
}

}  // namespace

bool in_language(std::string_view text, Language language, const SuccessThresholds& thresholds) {
  const double least =
      language == Language::kChinese ? thresholds.min_han_share : thresholds.min_latin_share;
  return count_scripts(text).share(language) >= least;
}

double repeated_share(std::string_view text, const SuccessThresholds& thresholds) {
  const std::u32string characters = dense(text);
  const auto size = static_cast<std::int64_t>(characters.size());
  // A loop of whole sentences is longer than this, and rare.
  constexpr std::int64_t kLongestPeriod = 100;
  std::int64_t longest = 0;
  for (std::int64_t period = 1; period <= std::min(kLongestPeriod, size / thresholds.min_repeats);
       ++period) {
    std::int64_t run = 0;
    for (std::int64_t i = period; i < size; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const bool same = characters[at] == characters[at - static_cast<std::size_t>(period)];
      run = same ? run + 1 : 0;
      // `run` more characters than one period repeat it.
      const std::int64_t length = run + period;
      if (length >= thresholds.min_repeated_chars && length >= thresholds.min_repeats * period) {
        longest = std::max(longest, length);
      }
    }
  }
  return size == 0 ? 0.0 : static_cast<double>(longest) / static_cast<double>(size);
}

SentenceVerdict judge_translation(std::string_view source, std::string_view hypothesis,
                                  std::string_view reference, Language target,
                                  const SuccessThresholds& thresholds) {
  SentenceVerdict verdict;
  const auto hypothesis_size = static_cast<double>(dense(hypothesis).size());
  const auto reference_size = static_cast<double>(dense(reference).size());
  if (hypothesis_size == 0) {
    verdict.empty = true;
    return verdict;
  }
  verdict.chrf = sentence_chrf(hypothesis, reference);
  verdict.wrong_language =
      !in_language(hypothesis, target, thresholds) && in_language(reference, target, thresholds);
  verdict.copy = is_copy(source, hypothesis, thresholds) && !is_copy(source, reference, thresholds);
  verdict.repetition = is_loop(hypothesis, thresholds) && !is_loop(reference, thresholds);
  verdict.wrong_length = hypothesis_size < thresholds.min_length_ratio * reference_size ||
                         hypothesis_size > thresholds.max_length_ratio * reference_size;
  verdict.low_chrf = verdict.chrf < (target == Language::kChinese ? thresholds.min_chrf_chinese
                                                                  : thresholds.min_chrf_english);
  return verdict;
}

bool translation_success(std::string_view source, std::string_view hypothesis,
                         std::string_view reference, Language target,
                         const SuccessThresholds& thresholds) {
  return judge_translation(source, hypothesis, reference, target, thresholds).success();
}

void QualityCounts::add(const SentenceVerdict& verdict) {
  ++sentences;
  empty += verdict.empty ? 1 : 0;
  wrong_language += verdict.wrong_language ? 1 : 0;
  copy += verdict.copy ? 1 : 0;
  repetition += verdict.repetition ? 1 : 0;
  wrong_length += verdict.wrong_length ? 1 : 0;
  low_chrf += verdict.low_chrf ? 1 : 0;
  success += verdict.success() ? 1 : 0;
  chrf_sum += verdict.chrf;
}

double QualityCounts::rate(std::int64_t count) const {
  return sentences == 0 ? 0.0 : static_cast<double>(count) / static_cast<double>(sentences);
}

double QualityCounts::mean_chrf() const {
  return sentences == 0 ? 0.0 : chrf_sum / static_cast<double>(sentences);
}

bool QualityCounts::pass(const SuccessThresholds& thresholds) const {
  return sentences > 0 && success_rate() >= thresholds.min_success_rate;
}

QualityCounts judge_translations(const std::vector<std::string>& sources,
                                 const std::vector<std::string>& hypotheses,
                                 const std::vector<std::string>& references, Language target,
                                 const SuccessThresholds& thresholds) {
  if (sources.size() != hypotheses.size() || sources.size() != references.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                "lines: expected as many of each, got " + std::to_string(sources.size()) +
                    " sources, " + std::to_string(hypotheses.size()) + " hypotheses and " +
                    std::to_string(references.size()) + " references");
  }
  QualityCounts counts;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    counts.add(judge_translation(sources[i], hypotheses[i], references[i], target, thresholds));
  }
  return counts;
}

}  // namespace kda::text
