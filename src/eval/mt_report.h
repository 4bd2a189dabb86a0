/// The result of a translation evaluation, as JSON, text and one HTML page.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "eval/eval_set.h"
#include "eval/stage.h"
#include "eval/translate.h"
#include "io/json.h"
#include "text/translation_quality.h"

namespace kda::eval {

/// What sacreBLEU says of a section; absent where it was not asked.
struct BleuScores {
  double bleu = 0;
  double brevity_penalty = 0;
  double chrf = 0;
  std::string bleu_signature;
  std::string chrf_signature;
  std::vector<std::pair<std::string, double>> bleu_of_strata;
  std::optional<double> langdetect_match_rate;  ///< nothing where langdetect is not installed
  std::string langdetect_counts;                ///< JSON object text, codes to sentences
};

/// The best score of systems that do not translate (copy, other references, nearest training pair)
/// on a frozen set.
struct Floor {
  const char* set;
  text::Direction direction;
  double bleu;
  double chrf;
};
/// Nothing for sets without a measured floor: another corpus has a "test" too, told by its strata.
const Floor* floor_of(const EvalTask& task);

/// One set in one direction.
struct MtSection {
  EvalTask task;
  std::vector<Translation> translations;
  double seconds = 0;
  std::optional<BleuScores> scores;

  // Filled by judge().
  std::vector<text::SentenceVerdict> verdicts;
  text::QualityCounts counts;
  std::vector<std::pair<std::string, text::QualityCounts>> strata;  ///< in order of appearance
  double chrf = 0;            ///< corpus chrF2, our own sum; equals sacreBLEU's
  std::int64_t at_limit = 0;  ///< answers that were cut by max_new_tokens
};

struct MtReport {
  std::string system;  ///< checkpoint, or file of hypotheses
  CheckpointStage checkpoint;
  bool is_model = true;  ///< false: hypotheses came from a file
  TranslateOptions decoding;
  std::string device, dtype;
  std::size_t limit = 0;  ///< sentences per section asked for; 0: all
  text::SuccessThresholds thresholds;
  std::vector<std::string> set_notes;  ///< what is special about the sets (missing_pairs_note)
  std::vector<MtSection> sections;
};

/// Fills verdicts, counts, strata, chrf and at_limit.
void judge(MtSection& section, const text::SuccessThresholds& thresholds);

/// What a reader must know to read the numbers: a pretrained-only model, a part of a set, scores
/// that no floor is known for, signatures.
std::vector<std::string> notes_of(const MtReport& report);

/// Whether the section may claim that the system translates: success rate, and BLEU and chrF above
/// the floor where one is known. Nothing without BLEU.
std::optional<bool> translates(const MtSection& section, const text::SuccessThresholds& thresholds);

io::Json to_json(const MtReport& report);
std::string to_text(const MtReport& report);
/// Self-contained: no script, no link; every text from outside is escaped.
std::string to_html(const MtReport& report);

}  // namespace kda::eval
