#include <algorithm>
#include <cstdio>
#include <string>

#include "eval/mt_report.h"

namespace kda::eval {
namespace {

constexpr std::size_t kSampleRows = 40;

constexpr const char* kStyle =
    "body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;"
    "color:#1c2430;background:#fff}"
    "h1{font-size:1.4rem}h2{font-size:1.15rem;margin-top:2rem}"
    "table{border-collapse:collapse;width:100%;margin:.6rem 0}"
    "th,td{padding:.3rem .55rem;border-bottom:1px solid #d8dee6;text-align:left;"
    "vertical-align:top}"
    "th{font-weight:600;background:#f3f6f9}td.n,th.n{text-align:right;"
    "font-variant-numeric:tabular-nums}"
    ".ok{color:#0a6b3d}.no{color:#a3261b}.s{color:#5a6675}"
    "ul.notes{background:#fff7e0;border:1px solid #e8d9a0;padding:.6rem .6rem .6rem 1.8rem}"
    "code{background:#f3f6f9;padding:0 .2rem}";

/// `text` as the content of an element or attribute; control characters, which no HTML text may
/// hold, become U+FFFD.
std::string html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7F) {
          out += "\xEF\xBF\xBD";
        } else {
          out += c;
        }
    }
  }
  return out;
}

std::string number(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string cell(const std::string& content, const char* kind = "") {
  return std::string("<td") + (*kind == '\0' ? "" : std::string(" class=\"") + kind + "\"") + ">" +
         content + "</td>";
}

std::string faults(const text::SentenceVerdict& v) {
  std::string out;
  const auto add = [&](bool is, const char* word) {
    if (is) out += (out.empty() ? "" : ", ") + std::string(word);
  };
  add(v.empty, "empty");
  add(v.wrong_language, "wrong language");
  add(v.copy, "copy");
  add(v.repetition, "loop");
  add(v.wrong_length, "length");
  add(v.low_chrf, "low chrF");
  return out.empty() ? "<span class=\"ok\">success</span>"
                     : "<span class=\"no\">" + out + "</span>";
}

std::string html_percent(double share) { return number(100 * share, 1); }

std::string rate_cells(const text::QualityCounts& c) {
  std::string out;
  for (const double share : {c.success_rate(), c.language_match_rate(), c.rate(c.copy),
                             c.rate(c.empty), c.rate(c.repetition)}) {
    out += cell(html_percent(share), "n");
  }
  return out + cell(std::to_string(c.sentences), "n");
}

std::string bleu_cell(const MtSection& section, const std::string& stratum) {
  if (!section.scores) return cell("–", "n");
  if (stratum.empty()) return cell(number(section.scores->bleu, 2), "n");
  for (const auto& [name, bleu] : section.scores->bleu_of_strata) {
    if (name == stratum) return cell(number(bleu, 2), "n");
  }
  return cell("–", "n");
}

std::string summary_table(const MtReport& report) {
  std::string out =
      "<table><tr><th>set</th><th class=\"n\">BLEU</th><th class=\"n\">floor</th><th "
      "class=\"n\">chrF</th><th class=\"n\">floor</th><th class=\"n\">success %</th><th "
      "class=\"n\">language %</th><th class=\"n\">copy %</th><th class=\"n\">empty %</th><th "
      "class=\"n\">loop %</th><th class=\"n\">pairs</th><th>translates</th></tr>\n";
  for (const MtSection& section : report.sections) {
    const Floor* floor = floor_of(section.task);
    const std::optional<bool> verdict = translates(section, report.thresholds);
    out += "<tr>" + cell("<b>" + html(section.task.name()) + "</b>") + bleu_cell(section, "") +
           cell(floor ? number(floor->bleu, 2) : "–", "n") + cell(number(section.chrf, 2), "n") +
           cell(floor ? number(floor->chrf, 2) : "–", "n") + rate_cells(section.counts) +
           (verdict ? cell(*verdict ? "yes" : "no", *verdict ? "ok" : "no") : cell("–")) +
           "</tr>\n";
    if (section.strata.size() < 2) continue;
    for (const auto& [name, counts] : section.strata) {
      out += "<tr>" + cell("&emsp;" + html(name), "s") + bleu_cell(section, name) + cell("", "n") +
             cell("", "n") + cell("", "n") + rate_cells(counts) + cell("") + "</tr>\n";
    }
  }
  return out + "</table>\n";
}

std::string samples(const MtSection& section) {
  const std::size_t size = section.task.sources.size();
  const std::size_t rows = std::min(size, kSampleRows);
  std::string out = "<h2>" + html(section.task.name()) + "</h2>\n<p class=\"s\">" +
                    std::to_string(rows) + " of " + std::to_string(size) +
                    " sentences, evenly spaced.</p>\n<table><tr><th class=\"n\">#</th>"
                    "<th>source</th><th>hypothesis</th><th>reference</th><th class=\"n\">chrF</th>"
                    "<th>verdict</th></tr>\n";
  for (std::size_t r = 0; r < rows; ++r) {
    const std::size_t i = r * size / rows;
    out += "<tr>" + cell(std::to_string(i + 1), "n") + cell(html(section.task.sources[i])) +
           cell(html(section.translations[i].text)) + cell(html(section.task.references[i])) +
           cell(number(section.verdicts[i].chrf, 1), "n") + cell(faults(section.verdicts[i])) +
           "</tr>\n";
  }
  return out + "</table>\n";
}

}  // namespace

std::string to_html(const MtReport& report) {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n<title>Translation of " +
      html(report.system) + "</title>\n<style>" + kStyle + "</style></head><body>\n<h1>" +
      html(report.system) + "</h1>\n<p>";
  if (report.is_model) {
    out += html(name_of(report.checkpoint.stage)) +
           (report.checkpoint.step ? ", step " + std::to_string(*report.checkpoint.step) : "") +
           "; " +
           (report.decoding.beam == 1
                ? std::string("greedy")
                : "beam " + std::to_string(report.decoding.beam) + ", length penalty " +
                      number(report.decoding.length_penalty, 2)) +
           "; " + html(report.device) + ", " + html(report.dtype);
  } else {
    out += "hypotheses from a file";
  }
  out += "</p>\n";
  const std::vector<std::string> notes = notes_of(report);
  if (!notes.empty()) {
    out += "<ul class=\"notes\">";
    for (const std::string& note : notes)
      out += "<li>" + html(note) + "</li>";
    out += "</ul>\n";
  }
  out += summary_table(report);
  for (const MtSection& section : report.sections) {
    if (!section.scores) continue;
    out += "<p class=\"s\">" + html(section.task.name()) + ": <code>" +
           html(section.scores->bleu_signature) + "</code> <code>" +
           html(section.scores->chrf_signature) + "</code></p>\n";
  }
  for (const MtSection& section : report.sections)
    out += samples(section);
  return out + "</body></html>\n";
}

}  // namespace kda::eval
