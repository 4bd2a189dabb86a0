/// A few sentences translated during fine-tuning: the measure that the best checkpoint is chosen
/// by.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/causal_lm.h"
#include "text/language.h"
#include "text/tokenizer.h"
#include "train/options.h"
#include "train/report.h"

namespace kda::train {

struct TranslationSet {
  text::Language target = text::Language::kEnglish;
  std::vector<std::string> sources;
  std::vector<std::string> references;
};

/// The sets of a run: `--src` and `--ref`; else eval/dev.{en,zh} beside the examples, in both
/// directions; else none. Of each `mt_pairs` lines, evenly spaced. Throws kIo for files,
/// kInvalidArgument naming both counts when they have different numbers of lines.
std::vector<TranslationSet> find_translation_sets(const TrainOptions& options);

struct TranslationScore {
  std::int64_t sentences = 0;
  double success_rate = 0;  ///< share with translation_success() (text/translation_quality.h)
  double mean_chrf = 0;     ///< of sentences
  double seconds = 0;
  std::string sample_source;  ///< the first sentence and what became of it
  std::string sample_output;
};

/// Translates greedily with the template of training and evaluation. Polls for signals at every
/// token (throws Interrupted). Throws kNonFinite naming the layer.
TranslationScore translate_sets(const model::CausalLM& model, const text::Tokenizer& tokenizer,
                                const std::vector<TranslationSet>& sets, std::int64_t max_tokens,
                                Reporter& reporter);

}  // namespace kda::train
