#include <stdlib.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/app.h"
#include "cli/cmd_eval.h"
#include "cli/console.h"
#include "cli/model_loading.h"
#include "cli/no_effect.h"
#include "cli/number_option.h"
#include "cli/python_tool.h"
#include "eval/eval_set.h"
#include "eval/mt_report.h"
#include "eval/translate.h"
#include "io/atomic_file.h"
#include "io/escape.h"
#include "io/json.h"
#include "kda/error.h"
#include "train/named_errors.h"
#include "train/signals.h"

namespace kda::cli {
namespace fs = std::filesystem;
namespace {

constexpr const char* kEvaluationModule = "kda.evaluation";
constexpr const char* kMtVerb = "eval mt";

struct MtCommand {
  LoadModelOptions load;
  std::string data;
  std::vector<std::string> sets;
  std::string direction = "both";
  std::string src, ref, target_lang, hyp;
  std::string out;
  eval::TranslateOptions decoding;
  std::int64_t limit = 0;
  bool no_bleu = false;
  bool json = false;
};

[[noreturn]] void refuse_mt(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, text);
}

/// A folder that goes with its content.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (fs::temp_directory_path() / "kda-eval-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) io::throw_errno("cannot make", name);
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void check_command(const MtCommand& c) {
  const bool files = !c.src.empty() || !c.ref.empty() || !c.target_lang.empty();
  if (files == !c.data.empty()) {
    refuse_mt("give --data FOLDER, or --src FILE, --ref FILE and --target-lang: one of the two");
  }
  if (files && (c.src.empty() || c.ref.empty() || c.target_lang.empty())) {
    refuse_mt("--src, --ref and --target-lang belong together: " +
              std::string(c.src.empty()   ? "--src"
                          : c.ref.empty() ? "--ref"
                                          : "--target-lang") +
              " is missing");
  }
  if (files && (!c.sets.empty() || c.direction != "both")) {
    refuse_mt("--set and --direction need --data; with --src the target is --target-lang");
  }
  if (!c.hyp.empty() && !files) refuse_mt("--hyp needs --src, --ref and --target-lang");
  if (!c.hyp.empty() && !c.load.checkpoint.empty()) {
    refuse_mt("--hyp and --ckpt exclude each other: hypotheses come from one of them");
  }
  if (c.hyp.empty() && c.load.checkpoint.empty()) refuse_mt("--ckpt is required (or --hyp)");
}

void check_effects(const CLI::App* verb, const MtCommand& c) {
  if (!c.hyp.empty()) {
    refuse_given(verb,
                 {"--beam", "--length-penalty", "--max-new-tokens", "--batch", "--tokenizer",
                  "--dtype", "--device", "--backend", "--threads"},
                 "with --hyp: no model translates");
  }
  if (c.decoding.beam == 1) {
    refuse_given(verb, {"--length-penalty"}, "with greedy decoding (--beam 1)");
  }
}

std::vector<eval::EvalTask> tasks_of(const MtCommand& c, std::vector<std::string>& notes) {
  std::vector<eval::EvalTask> tasks;
  if (c.data.empty()) {
    const auto target = text::language_from(c.target_lang);
    if (!target) refuse_mt("--target-lang: expected en or zh, got " + io::escaped(c.target_lang));
    tasks.push_back(
        train::named("--src, --ref", [&] { return eval::load_line_files(c.src, c.ref, *target); }));
  } else {
    std::vector<text::Direction> directions{text::Direction::kEnToZh, text::Direction::kZhToEn};
    if (c.direction != "both") {
      const auto one = text::direction_from(c.direction);
      if (!one)
        refuse_mt("--direction: expected both, en2zh or zh2en, got " + io::escaped(c.direction));
      directions = {*one};
    }
    const fs::path folder = eval::find_eval_folder(c.data);
    const std::vector<std::string> sets =
        c.sets.empty() ? eval::default_sets(eval::set_names(folder)) : c.sets;
    for (const std::string& set : sets) {
      const std::string note = eval::missing_pairs_note(folder, set);
      if (!note.empty()) notes.push_back(note);
      for (const text::Direction direction : directions)
        tasks.push_back(eval::load_eval_set(folder, set, direction));
    }
  }
  for (eval::EvalTask& task : tasks)
    task = eval::evenly_limited(task, static_cast<std::size_t>(c.limit));
  return tasks;
}

std::vector<eval::Translation> read_hypotheses(const MtCommand& c, const eval::EvalTask& task) {
  const std::vector<std::string> lines =
      train::named("--hyp", [&] { return eval::read_lines(c.hyp); });
  if (lines.size() != task.sources.size()) {
    refuse_mt("--hyp: expected " + std::to_string(task.sources.size()) +
              " lines as in --src, got " + std::to_string(lines.size()) + " in " + c.hyp);
  }
  std::vector<eval::Translation> translations;
  for (const std::string& line : lines)
    translations.push_back({line, 0, model::FinishReason::kStop});
  return translations;
}

void translate_sections(const MtCommand& c, const LoadedModel& loaded, eval::MtReport& report,
                        train::Reporter& reporter) {
  for (eval::MtSection& section : report.sections) {
    const auto start = std::chrono::steady_clock::now();
    train::ProgressRecord progress{"translating " + section.task.name(), 0,
                                   static_cast<double>(section.task.sources.size()), 0, false};
    const auto seconds = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    section.translations = eval::translate(loaded.model, loaded.tokenizer, section.task.sources,
                                           text::target_of(section.task.direction), c.decoding,
                                           [&](std::int64_t done) {
                                             train::poll_stop();
                                             progress.done = static_cast<double>(done);
                                             progress.seconds = seconds();
                                             reporter.progress(progress);
                                           });
    section.seconds = seconds();
  }
}

io::Json request_of(const eval::MtReport& report) {
  io::Json sections = io::Json::array();
  for (const eval::MtSection& section : report.sections) {
    std::vector<std::string> hypotheses;
    for (const eval::Translation& translation : section.translations)
      hypotheses.push_back(translation.text);
    sections.push_back(
        {{"target", std::string(text::name_of(text::target_of(section.task.direction)))},
         {"hypotheses", hypotheses},
         {"references", section.task.references},
         {"strata", section.strata.size() > 1 ? section.task.strata : std::vector<std::string>{}}});
  }
  return {{"sections", std::move(sections)}};
}

eval::BleuScores scores_of(const io::Json& json) {
  eval::BleuScores scores;
  scores.bleu = json.at("bleu").get<double>();
  scores.brevity_penalty = json.at("brevity_penalty").get<double>();
  scores.chrf = json.at("chrf").get<double>();
  scores.bleu_signature = json.at("bleu_signature").get<std::string>();
  scores.chrf_signature = json.at("chrf_signature").get<std::string>();
  for (const auto& item : json.at("strata").items())
    scores.bleu_of_strata.emplace_back(item.key(), item.value().at("bleu").get<double>());
  if (const io::Json& detected = json.at("langdetect"); detected.is_object()) {
    scores.langdetect_match_rate = detected.at("match_rate").get<double>();
    scores.langdetect_counts = detected.at("counts").dump();
  }
  return scores;
}

void score(eval::MtReport& report) {
  const ScratchFolder scratch;
  const fs::path request = scratch.path() / "request.json";
  const fs::path answer = scratch.path() / "answer.json";
  io::write_json_file(request, request_of(report));
  run_python_module(kEvaluationModule, {"score", request.string(), answer.string()}, "scores");
  const io::Json json = io::read_json_file(answer);
  try {
    const io::Json& sections = json.at("sections");
    for (std::size_t i = 0; i < report.sections.size(); ++i)
      report.sections[i].scores = scores_of(sections.at(i));
  } catch (const io::Json::exception& error) {
    throw Error(ErrorCode::kInternal, std::string("scores: unexpected answer: ") + error.what());
  }
}

void write_files(const fs::path& out, const eval::MtReport& report, bool has_hypotheses) {
  fs::create_directories(out);
  if (has_hypotheses) {
    for (const eval::MtSection& section : report.sections) {
      std::string lines;
      for (const eval::Translation& translation : section.translations)
        lines += translation.text + "\n";
      io::write_file_atomic(out / (section.task.name() + ".hyp.txt"), lines);
    }
  }
  io::write_file_atomic(out / "report.txt", eval::to_text(report));
  io::write_file_atomic(out / "report.html", eval::to_html(report));
  io::write_json_file(out / "report.json", eval::to_json(report));
}

int run_mt(const CLI::App* verb, const MtCommand& command) {
  check_command(command);
  check_effects(verb, command);
  const train::SignalScope signals;
  eval::MtReport report;
  report.decoding = command.decoding;
  report.dtype = command.load.dtype;
  report.limit = static_cast<std::size_t>(command.limit);
  for (eval::EvalTask& task : tasks_of(command, report.set_notes)) {
    report.sections.emplace_back();
    report.sections.back().task = std::move(task);
  }
  // Before minutes of decoding, not after them.
  if (!command.out.empty() && fs::exists(command.out) && !fs::is_directory(command.out)) {
    throw Error(ErrorCode::kIo, "--out: expected a folder, or a name for a new one, got " +
                                    command.out + ", which is a file");
  }
  if (!command.no_bleu) run_python_module(kEvaluationModule, {"check"}, "scores");

  ConsoleReporter console(kMtVerb);
  train::Reporter silent;
  if (command.hyp.empty()) {
    const LoadedModel loaded = load_for_use(command.load, kMtVerb);
    report.system = loaded.folder.string();
    report.checkpoint = eval::stage_of(loaded.folder);
    report.device = loaded.device;
    translate_sections(command, loaded, report,
                       command.json ? silent : static_cast<train::Reporter&>(console));
  } else {
    report.system = command.hyp;
    report.is_model = false;
    for (eval::MtSection& section : report.sections)
      section.translations = read_hypotheses(command, section.task);
  }
  for (eval::MtSection& section : report.sections)
    eval::judge(section, report.thresholds);
  if (!command.no_bleu) score(report);
  if (!command.out.empty()) write_files(command.out, report, command.hyp.empty());
  if (command.json) {
    std::printf("%s\n", eval::to_json(report).dump(2).c_str());
  } else {
    console.note(eval::to_text(report));
    if (!command.out.empty()) console.note("wrote " + command.out + "/report.{txt,json,html}");
  }
  return kDone;
}

}  // namespace

void add_eval_mt(CLI::App& eval) {
  CLI::App* verb = add_verb(
      eval, "mt", "Translate evaluation sets and score the translations",
      "  kda eval mt --ckpt runs/sft/best --data data/debian-small --out runs/sft/mt\n"
      "  kda eval mt --ckpt runs/sft --data data/debian-small --set indomain --beam 4\n"
      "  kda eval mt --ckpt runs/sft --src my.zh --ref my.en --target-lang en --device cuda\n"
      "  kda eval mt --hyp other.out --src my.en --ref my.zh --target-lang zh   # scores only\n"
      "\n"
      "Prints BLEU and chrF (sacreBLEU, tok:zh into Chinese), the share of sentences that are\n"
      "translations at all, and why the others are not; docs/evaluation.md explains each column.");
  auto c = std::make_shared<MtCommand>();
  verb->add_option("--ckpt", c->load.checkpoint,
                   "Run folder, checkpoint folder, RUN/best or RUN/last")
      ->type_name("PATH");
  verb->add_option("--data", c->data, "Corpus folder of `kda data build` or `kda export-flores`")
      ->type_name("DIR");
  verb->add_option("--set", c->sets,
                   "Evaluation sets of the folder; default: test and indomain, both if there")
      ->type_name("NAME")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  verb->add_option("--direction", c->direction, "both, en2zh or zh2en")
      ->type_name("TEXT")
      ->capture_default_str();
  verb->add_option("--src", c->src, "Your own sentences, one per line")->type_name("FILE");
  verb->add_option("--ref", c->ref, "Their references, line by line")->type_name("FILE");
  verb->add_option("--target-lang", c->target_lang, "Language of --ref: en or zh")
      ->type_name("TEXT");
  verb->add_option("--hyp", c->hyp, "Score these translations of --src, without a model")
      ->type_name("FILE");
  verb->add_option("--out", c->out, "Folder for report.txt, .json, .html and the translations")
      ->type_name("DIR");
  add_whole(verb, "--beam", c->decoding.beam, {1, 64}, "Hypotheses per sentence; 1 = greedy");
  add_real(verb, "--length-penalty", c->decoding.length_penalty,
           "With --beam: a in sum(log p) / length^a; higher prefers longer");
  add_whole(verb, "--max-new-tokens", c->decoding.max_new_tokens, {.low = 1},
            "Tokens of one translation at most");
  add_whole(verb, "--batch", c->decoding.batch, {1, 1 << 16}, "Sentences decoded at once");
  add_whole(verb, "--limit", c->limit, {}, "Sentences of each set, evenly spaced; 0 = all");
  verb->add_flag("--no-bleu", c->no_bleu, "Without sacreBLEU and Python: success rates and chrF");
  add_model_options(verb, c->load);
  verb->add_flag("--json", c->json, "One JSON object on standard output");
  on_run(verb, [verb, c] { return run_mt(verb, *c); });
}

}  // namespace kda::cli
