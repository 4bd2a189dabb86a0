/// Did a sentence get translated? A yes or no for each sentence, and rates over many.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/language.h"

namespace kda::text {

/// What a translation must satisfy. The values are the same for all models, so that rates compare.
struct SuccessThresholds {
  /// Least share of the target's script (ScriptCounts::share). All 2,000 references of the frozen
  /// and bundled sets pass; a statistical language detector refuses one in five Chinese ones.
  double min_han_share = 0.5;
  double min_latin_share = 0.8;
  /// A hypothesis is a copy when its chrF against the source is at least this.
  double copy_chrf = 90.0;
  /// A stretch that repeats itself this often, is this long (characters without white space) and
  /// makes up this share of the hypothesis is a loop.
  std::int64_t min_repeats = 4;
  std::int64_t min_repeated_chars = 10;
  double min_repeated_share = 1.0 / 3.0;
  /// Length of the hypothesis over that of the reference, in characters without white space.
  double min_length_ratio = 0.3;
  double max_length_ratio = 3.0;
  /// Least sentence chrF. Against references of other sentences, 3 of 2,000 English ones reach 30
  /// and none of 2,000 Chinese ones reaches 15 (the highest is 10.7).
  double min_chrf_english = 30.0;
  double min_chrf_chinese = 15.0;
  /// A system passes when so many of its sentences do.
  double min_success_rate = 0.5;
};

/// Each test of one sentence; `true` means that the fault is there.
struct SentenceVerdict {
  bool empty = false;
  bool wrong_language = false;
  bool copy = false;
  bool repetition = false;
  bool wrong_length = false;
  bool low_chrf = false;
  double chrf = 0;

  bool success() const {
    return !(empty || wrong_language || copy || repetition || wrong_length || low_chrf);
  }
};

/// Judges `hypothesis` as a translation of `source` into `target`. Where the reference itself is
/// not in the target's script (a number, a name), is the source, or is a loop, that test passes.
SentenceVerdict judge_translation(std::string_view source, std::string_view hypothesis,
                                  std::string_view reference, Language target,
                                  const SuccessThresholds& thresholds = {});

/// judge_translation(...).success().
bool translation_success(std::string_view source, std::string_view hypothesis,
                         std::string_view reference, Language target,
                         const SuccessThresholds& thresholds = {});

/// Script test alone: enough of the target's script.
bool in_language(std::string_view text, Language language,
                 const SuccessThresholds& thresholds = {});

/// Share of `text` (characters without white space) in its longest stretch that repeats itself at
/// least `min_repeats` times; 0 when there is none of `min_repeated_chars`.
double repeated_share(std::string_view text, const SuccessThresholds& thresholds = {});

/// Counts over sentences.
struct QualityCounts {
  std::int64_t sentences = 0;
  std::int64_t empty = 0;
  std::int64_t wrong_language = 0;  ///< empty ones not counted, for this and all below
  std::int64_t copy = 0;
  std::int64_t repetition = 0;
  std::int64_t wrong_length = 0;
  std::int64_t low_chrf = 0;
  std::int64_t success = 0;
  double chrf_sum = 0;  ///< of sentence scores

  void add(const SentenceVerdict& verdict);
  double rate(std::int64_t count) const;
  double success_rate() const { return rate(success); }
  double language_match_rate() const { return rate(sentences - empty - wrong_language); }
  double mean_chrf() const;
  bool pass(const SuccessThresholds& thresholds = {}) const;
};

/// Judges line by line. Throws kInvalidArgument naming the counts when they differ.
QualityCounts judge_translations(const std::vector<std::string>& sources,
                                 const std::vector<std::string>& hypotheses,
                                 const std::vector<std::string>& references, Language target,
                                 const SuccessThresholds& thresholds = {});

}  // namespace kda::text
