#include "train/translation_probe.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "eval/translate.h"
#include "io/atomic_file.h"
#include "kda/error.h"
#include "text/translation_quality.h"
#include "train/signals.h"

namespace kda::train {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> lines_of(const fs::path& path) {
  std::string text = io::read_file(path);
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    lines.push_back(text.substr(begin, end - begin));
    if (!lines.back().empty() && lines.back().back() == '\r') lines.back().pop_back();
    begin = end + 1;
  }
  return lines;
}

TranslationSet read_set(const fs::path& source, const fs::path& reference, text::Language target,
                        std::int64_t wanted) {
  const std::vector<std::string> sources = lines_of(source);
  const std::vector<std::string> references = lines_of(reference);
  if (sources.size() != references.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                reference.string() + ": expected as many lines as " + source.string() + " has (" +
                    std::to_string(sources.size()) + "), got " + std::to_string(references.size()));
  }
  TranslationSet set;
  set.target = target;
  const std::size_t count = std::min(sources.size(), static_cast<std::size_t>(wanted));
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t line = i * sources.size() / count;
    set.sources.push_back(sources[line]);
    set.references.push_back(references[line]);
  }
  return set;
}

}  // namespace

std::vector<TranslationSet> find_translation_sets(const TrainOptions& o) {
  if (o.task != Task::kSft || o.mt_pairs == 0) return {};
  std::vector<TranslationSet> sets;
  if (!o.src.empty()) {
    sets.push_back(read_set(o.src, o.ref, text::language_from(o.target_lang).value(), o.mt_pairs));
  } else {
    const fs::path data = o.data;
    const fs::path folder = (fs::is_directory(data) ? data : data.parent_path()) / "eval";
    const fs::path english = folder / "dev.en";
    const fs::path chinese = folder / "dev.zh";
    if (!fs::exists(english) || !fs::exists(chinese)) return {};
    sets.push_back(read_set(chinese, english, text::Language::kEnglish, o.mt_pairs));
    sets.push_back(read_set(english, chinese, text::Language::kChinese, o.mt_pairs));
  }
  std::erase_if(sets, [](const TranslationSet& set) { return set.sources.empty(); });
  return sets;
}

TranslationScore translate_sets(const model::CausalLM& model, const text::Tokenizer& tokenizer,
                                const std::vector<TranslationSet>& sets, std::int64_t max_tokens,
                                Reporter& reporter) {
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  eval::TranslateOptions how;
  how.max_new_tokens = max_tokens;
  TranslationScore score;
  text::QualityCounts counts;
  ProgressRecord progress{"translating", 0, 0, 0, false};
  for (const TranslationSet& set : sets)
    progress.total += static_cast<double>(set.sources.size());
  double before = 0;
  for (const TranslationSet& set : sets) {
    const std::vector<eval::Translation> outputs =
        eval::translate(model, tokenizer, set.sources, set.target, how, [&](std::int64_t done) {
          poll_stop();
          progress.done = before + static_cast<double>(done);
          progress.seconds = seconds();
          reporter.progress(progress);
        });
    before += static_cast<double>(set.sources.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      counts.add(
          text::judge_translation(set.sources[i], outputs[i].text, set.references[i], set.target));
    }
    if (score.sample_source.empty() && !outputs.empty()) {
      score.sample_source = set.sources.front();
      score.sample_output = outputs.front().text;
    }
  }
  score.sentences = counts.sentences;
  score.success_rate = counts.success_rate();
  score.mean_chrf = counts.mean_chrf();
  score.seconds = seconds();
  return score;
}

}  // namespace kda::train
