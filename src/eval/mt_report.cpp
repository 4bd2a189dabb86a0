#include "eval/mt_report.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "text/chrf.h"
#include "text/prompts.h"

namespace kda::eval {
namespace {

// The best of the three systems of `kda data floors`; per column the higher of two measurements,
// with 86,605 and with 160,000 training pairs (docs/evaluation.md).
constexpr Floor kFloors[] = {
    {"test", text::Direction::kEnToZh, 3.05, 10.89},
    {"test", text::Direction::kZhToEn, 2.01, 15.24},
    {"indomain", text::Direction::kEnToZh, 11.88, 12.44},
    {"indomain", text::Direction::kZhToEn, 7.32, 23.35},
};

std::string fixed(double value, int digits = 2) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string percent(double share) { return fixed(100 * share, 1); }

io::Json rates(const text::QualityCounts& counts) {
  return {{"sentences", counts.sentences},
          {"success_rate", counts.success_rate()},
          {"language_match_rate", counts.language_match_rate()},
          {"copy_rate", counts.rate(counts.copy)},
          {"empty_rate", counts.rate(counts.empty)},
          {"repetition_rate", counts.rate(counts.repetition)},
          {"wrong_length_rate", counts.rate(counts.wrong_length)},
          {"low_chrf_rate", counts.rate(counts.low_chrf)},
          {"mean_sentence_chrf", counts.mean_chrf()}};
}

io::Json thresholds_json(const text::SuccessThresholds& t) {
  return {{"min_han_share", t.min_han_share},
          {"min_latin_share", t.min_latin_share},
          {"copy_chrf", t.copy_chrf},
          {"min_repeats", t.min_repeats},
          {"min_repeated_chars", t.min_repeated_chars},
          {"min_repeated_share", t.min_repeated_share},
          {"min_length_ratio", t.min_length_ratio},
          {"max_length_ratio", t.max_length_ratio},
          {"min_chrf_english", t.min_chrf_english},
          {"min_chrf_chinese", t.min_chrf_chinese},
          {"min_success_rate", t.min_success_rate}};
}

io::Json section_json(const MtSection& section, const text::SuccessThresholds& thresholds) {
  io::Json json = {{"set", section.task.set},
                   {"direction", std::string(text::name_of(section.task.direction))}};
  json.update(rates(section.counts));
  json["chrf"] = section.chrf;
  json["cut_at_limit"] = section.at_limit;
  json["seconds"] = section.seconds;
  if (section.scores) {
    const BleuScores& s = *section.scores;
    json["bleu"] = s.bleu;
    json["brevity_penalty"] = s.brevity_penalty;
    json["sacrebleu_chrf"] = s.chrf;
    json["bleu_signature"] = s.bleu_signature;
    json["chrf_signature"] = s.chrf_signature;
    json["langdetect_match_rate"] =
        s.langdetect_match_rate ? io::Json(*s.langdetect_match_rate) : io::Json(nullptr);
    if (!s.langdetect_counts.empty()) {
      json["langdetect_counts"] = io::parse_json(s.langdetect_counts, "langdetect");
    }
  }
  if (const Floor* floor = floor_of(section.task)) {
    json["floor"] = {{"bleu", floor->bleu}, {"chrf", floor->chrf}};
  }
  const std::optional<bool> verdict = translates(section, thresholds);
  json["pass"] = section.counts.pass(thresholds);
  json["translates"] = verdict ? io::Json(*verdict) : io::Json(nullptr);
  io::Json strata = io::Json::object();
  for (const auto& [name, counts] : section.strata) {
    strata[name] = rates(counts);
    if (!section.scores) continue;
    for (const auto& [stratum, bleu] : section.scores->bleu_of_strata) {
      if (stratum == name) strata[name]["bleu"] = bleu;
    }
  }
  json["strata"] = std::move(strata);
  return json;
}

// A table of text, columns as wide as their longest cell (all ASCII but set names).
class Columns {
 public:
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

  std::string text() const {
    std::vector<std::size_t> width;
    for (const auto& row : rows_) {
      width.resize(std::max(width.size(), row.size()), 0);
      for (std::size_t c = 0; c < row.size(); ++c)
        width[c] = std::max(width[c], row[c].size());
    }
    std::string out;
    for (const auto& row : rows_) {
      std::string line;
      for (std::size_t c = 0; c < row.size(); ++c) {
        const std::string pad(width[c] - row[c].size(), ' ');
        line += (c == 0 ? "" : "  ") + (c == 0 ? row[c] + pad : pad + row[c]);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      out += line + "\n";
    }
    return out;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string bleu_of(const MtSection& section, const std::string& stratum) {
  if (!section.scores) return "-";
  if (stratum.empty()) return fixed(section.scores->bleu);
  for (const auto& [name, bleu] : section.scores->bleu_of_strata) {
    if (name == stratum) return fixed(bleu);
  }
  return "-";
}

std::vector<std::string> count_cells(const text::QualityCounts& c) {
  return {percent(c.success_rate()), percent(c.language_match_rate()), percent(c.rate(c.copy)),
          percent(c.rate(c.empty)),  percent(c.rate(c.repetition)),    std::to_string(c.sentences)};
}

}  // namespace

const Floor* floor_of(const EvalTask& task) {
  static const std::set<std::string> kTest{"desc", "docs", "narrative", "ui"};
  static const std::set<std::string> kIndomain{"indomain"};
  const auto frozen = [&](const std::set<std::string>& strata) {
    return !task.strata.empty() &&
           std::all_of(task.strata.begin(), task.strata.end(),
                       [&](const std::string& name) { return strata.contains(name); });
  };
  if (!(task.set == "test" && frozen(kTest)) && !(task.set == "indomain" && frozen(kIndomain))) {
    return nullptr;
  }
  for (const Floor& floor : kFloors) {
    if (task.set == floor.set && task.direction == floor.direction) return &floor;
  }
  return nullptr;
}

void judge(MtSection& section, const text::SuccessThresholds& thresholds) {
  const EvalTask& task = section.task;
  section.verdicts.clear();
  section.counts = {};
  section.strata.clear();
  section.at_limit = 0;
  text::ChrfStatistics chrf;
  std::map<std::string, std::size_t> place;
  for (std::size_t i = 0; i < task.sources.size(); ++i) {
    const Translation& translation = section.translations.at(i);
    const text::SentenceVerdict verdict =
        text::judge_translation(task.sources[i], translation.text, task.references[i],
                                text::target_of(task.direction), thresholds);
    chrf.add(translation.text, task.references[i]);
    section.at_limit += translation.reason == model::FinishReason::kLength ? 1 : 0;
    section.counts.add(verdict);
    if (!task.strata.empty()) {
      const auto [found, is_new] = place.try_emplace(task.strata[i], section.strata.size());
      if (is_new) section.strata.emplace_back(task.strata[i], text::QualityCounts{});
      section.strata[found->second].second.add(verdict);
    }
    section.verdicts.push_back(verdict);
  }
  section.chrf = chrf.score();
}

std::optional<bool> translates(const MtSection& section,
                               const text::SuccessThresholds& thresholds) {
  if (!section.scores) return std::nullopt;
  const Floor* floor = floor_of(section.task);
  const bool above = floor == nullptr ||
                     (section.scores->bleu > floor->bleu && section.scores->chrf > floor->chrf);
  return above && section.counts.pass(thresholds);
}

std::vector<std::string> notes_of(const MtReport& report) {
  std::vector<std::string> notes;
  if (report.checkpoint.stage == Stage::kPretrained) {
    notes.push_back(
        "This checkpoint was only pretrained: it has never seen a translation prompt, so a success "
        "rate near 0 is what to expect and says nothing about its language modelling (`kda eval "
        "ppl` does). Fine-tune it with `kda sft` first.");
  } else if (report.is_model && report.checkpoint.stage == Stage::kUnknown) {
    notes.push_back(
        "The checkpoint does not say how it was trained. Unless it was fine-tuned with the prompts "
        "used here, a success rate near 0 is what to expect.");
  }
  if (report.checkpoint.prompt_version > 0 &&
      report.checkpoint.prompt_version != text::kPromptVersion) {
    notes.push_back("The checkpoint was fine-tuned with version " +
                    std::to_string(report.checkpoint.prompt_version) +
                    " of the prompts; this program asks with version " +
                    std::to_string(text::kPromptVersion) + ", which the model has not learnt.");
  }
  std::int64_t cut = 0;
  std::int64_t all = 0;
  bool partial_floor = false;
  for (const MtSection& section : report.sections) {
    cut += section.at_limit;
    all += section.counts.sentences;
    partial_floor = partial_floor || floor_of(section.task) == nullptr;
  }
  if (report.is_model && 10 * cut > all) {
    notes.push_back(std::to_string(cut) + " of " + std::to_string(all) +
                    " answers did not stop by themselves within " +
                    std::to_string(report.decoding.max_new_tokens) + " tokens.");
  }
  if (report.limit > 0) {
    notes.push_back("Only " + std::to_string(report.limit) +
                    " sentences of each set were translated: these scores do not compare with "
                    "those of whole sets.");
  }
  notes.insert(notes.end(), report.set_notes.begin(), report.set_notes.end());
  if (partial_floor) {
    notes.push_back(
        "No floor is known for some sets: BLEU there says little by itself (`kda data floors` "
        "measures systems that do not translate).");
  }
  return notes;
}

io::Json to_json(const MtReport& report) {
  io::Json json = {{"format", "kda-eval-mt"}, {"version", 1}};
  json["system"] = report.system;
  if (report.is_model) {
    json["stage"] = name_of(report.checkpoint.stage);
    if (report.checkpoint.step) json["step"] = *report.checkpoint.step;
    json["prompt_version"] = text::kPromptVersion;
    json["decoding"] = {{"beam", report.decoding.beam},
                        {"max_new_tokens", report.decoding.max_new_tokens},
                        {"batch", report.decoding.batch},
                        {"device", report.device},
                        {"dtype", report.dtype}};
    // Of beams only; greedy decoding compares no lengths.
    if (report.decoding.beam > 1) {
      json["decoding"]["length_penalty"] = report.decoding.length_penalty;
    }
  }
  json["limit"] = report.limit;
  json["thresholds"] = thresholds_json(report.thresholds);
  json["notes"] = notes_of(report);
  io::Json sections = io::Json::array();
  for (const MtSection& section : report.sections)
    sections.push_back(section_json(section, report.thresholds));
  json["sections"] = std::move(sections);
  return json;
}

std::string to_text(const MtReport& report) {
  std::string out = report.system;
  if (report.is_model) {
    out += std::string(" (") + name_of(report.checkpoint.stage) +
           (report.checkpoint.step ? ", step " + std::to_string(*report.checkpoint.step) : "") +
           "), " +
           (report.decoding.beam == 1 ? std::string("greedy")
                                      : "beam " + std::to_string(report.decoding.beam)) +
           ", at most " + std::to_string(report.decoding.max_new_tokens) + " tokens";
  }
  out += "\n\n";
  Columns table;
  table.add({"set", "BLEU", "floor", "chrF", "floor", "success %", "language %", "langdetect %",
             "copy %", "empty %", "loop %", "pairs", "translates"});
  for (const MtSection& section : report.sections) {
    const Floor* floor = floor_of(section.task);
    const auto cells = count_cells(section.counts);
    const std::optional<bool> verdict = translates(section, report.thresholds);
    const bool detected = section.scores && section.scores->langdetect_match_rate;
    table.add({section.task.name(), bleu_of(section, ""), floor ? fixed(floor->bleu) : "-",
               fixed(section.chrf), floor ? fixed(floor->chrf) : "-", cells[0], cells[1],
               detected ? percent(*section.scores->langdetect_match_rate) : "-", cells[2], cells[3],
               cells[4], cells[5], verdict ? (*verdict ? "yes" : "no") : "-"});
    if (section.strata.size() < 2) continue;
    for (const auto& [name, counts] : section.strata) {
      const auto part = count_cells(counts);
      table.add({"  " + name, bleu_of(section, name), "", "", "", part[0], part[1], "", part[2],
                 part[3], part[4], part[5], ""});
    }
  }
  out += table.text() + "\n";
  std::vector<std::string> signatures;
  for (const MtSection& section : report.sections) {
    if (!section.scores) continue;
    for (const std::string& line :
         {section.scores->bleu_signature, section.scores->chrf_signature}) {
      if (std::find(signatures.begin(), signatures.end(), line) == signatures.end()) {
        signatures.push_back(line);
      }
    }
  }
  for (const std::string& line : signatures)
    out += line + "\n";
  for (const std::string& note : notes_of(report))
    out += "note: " + note + "\n";
  return out;
}

}  // namespace kda::eval
