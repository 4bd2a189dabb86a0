#include "eval/eval_set.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "io/atomic_file.h"
#include "io/escape.h"
#include "io/json.h"
#include "io/sha256.h"
#include "io/utf8.h"
#include "kda/error.h"

namespace kda::eval {
namespace fs = std::filesystem;
namespace {

constexpr const char* kMeta = ".meta";

[[noreturn]] void fail(const std::string& text) { throw Error(ErrorCode::kIo, text); }

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = text.find(at, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return parts;
    begin = end + 1;
  }
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words)
    text += (text.empty() ? "" : ", ") + word;
  return text;
}

void check_id(const fs::path& meta, std::size_t line, const std::string& id, const std::string& en,
              const std::string& zh) {
  if (io::to_hex(io::sha256(en + "\t" + zh)) == id) return;
  fail(meta.string() + ":" + std::to_string(line + 1) +
       ": the pair is not the one that was frozen (sha256 of English and Chinese differs from "
       "its id); build the corpus again");
}

}  // namespace

std::string EvalTask::name() const { return set + "." + std::string(text::name_of(direction)); }

std::vector<std::string> read_lines(const fs::path& path) {
  std::string content = io::read_file(path);
  if (content.starts_with("\xEF\xBB\xBF")) content.erase(0, 3);
  if (content.empty()) return {};
  if (content.back() == '\n') content.pop_back();
  std::vector<std::string> lines = split(content, '\n');
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (!lines[i].empty() && lines[i].back() == '\r') lines[i].pop_back();
    if (const auto bad = io::find_invalid_utf8(lines[i]); bad != lines[i].size()) {
      fail(path.string() + ":" + std::to_string(i + 1) + ": expected UTF-8, byte " +
           std::to_string(bad + 1) + " of the line is not");
    }
  }
  return lines;
}

std::vector<std::string> set_names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code status;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, status)) {
    if (entry.path().extension() == kMeta) names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

fs::path find_eval_folder(const fs::path& data) {
  if (!fs::exists(data)) fail("--data: no such folder: " + data.string());
  for (const fs::path& folder : {data / "eval", data}) {
    if (!set_names(folder).empty()) return folder;
  }
  fail("--data: expected a corpus folder with evaluation sets (eval/test.en, .zh, .meta), got " +
       data.string() + "; `kda data build` makes them");
}

std::vector<std::string> default_sets(const std::vector<std::string>& names) {
  std::vector<std::string> chosen;
  for (const char* wanted : {"test", "indomain"}) {
    if (std::find(names.begin(), names.end(), wanted) != names.end()) chosen.emplace_back(wanted);
  }
  if (!chosen.empty()) return chosen;
  std::copy_if(names.begin(), names.end(), std::back_inserter(chosen),
               [](const std::string& name) { return name != "dev" && !name.ends_with("_dev"); });
  return chosen.empty() ? names : chosen;
}

EvalTask load_eval_set(const fs::path& folder, const std::string& set, text::Direction direction) {
  const std::vector<std::string> known = set_names(folder);
  if (std::find(known.begin(), known.end(), set) == known.end()) {
    throw Error(ErrorCode::kInvalidArgument, "--set: expected one of " + joined(known) + " in " +
                                                 folder.string() + ", got " + io::escaped(set));
  }
  const fs::path meta = folder / (set + kMeta);
  std::vector<std::string> en = read_lines(folder / (set + ".en"));
  std::vector<std::string> zh = read_lines(folder / (set + ".zh"));
  const std::vector<std::string> rows = read_lines(meta);
  if (en.size() != zh.size() || en.size() != rows.size() || en.empty()) {
    fail(folder.string() + "/" + set + ": expected as many lines of each, got " +
         std::to_string(en.size()) + " English, " + std::to_string(zh.size()) + " Chinese and " +
         std::to_string(rows.size()) + " of meta");
  }
  EvalTask task{set, direction, {}, {}, {}};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::vector<std::string> fields = split(rows[i], '\t');
    if (fields.size() != 3) {
      fail(meta.string() + ":" + std::to_string(i + 1) +
           ": expected id, stratum and source with tabs between");
    }
    check_id(meta, i, fields[0], en[i], zh[i]);
    task.strata.push_back(fields[1]);
  }
  const bool to_chinese = direction == text::Direction::kEnToZh;
  task.sources = to_chinese ? std::move(en) : std::move(zh);
  task.references = to_chinese ? std::move(zh) : std::move(en);
  return task;
}

std::string missing_pairs_note(const fs::path& folder, const std::string& set) {
  const fs::path manifest = fs::absolute(folder).parent_path() / "MANIFEST.json";
  if (!fs::exists(manifest)) return {};
  // Sources list thousands of files: over the limit of keys of the plain parser.
  const io::SortedJson json = io::parse_sorted_json(io::read_file(manifest), manifest.string());
  const io::SortedJson* at = &json;
  for (const std::string& key : {std::string("frozen_evaluation"), set}) {
    const auto found = at->is_object() ? at->find(key) : at->end();
    if (found == at->end()) return {};
    at = &*found;
  }
  const auto number = [at](const char* key) {
    const auto value = at->is_object() ? at->find(key) : at->end();
    return value != at->end() && value->is_number_integer() ? value->get<std::int64_t>() : 0;
  };
  const std::int64_t expected = number("expected");
  const std::int64_t found = number("found");
  if (found >= expected) return {};
  return "The corpus has " + std::to_string(found) + " of the " + std::to_string(expected) +
         " frozen pairs of " + set + ": scores do not compare exactly with those of the whole set.";
}

EvalTask load_line_files(const fs::path& source, const fs::path& reference, text::Language target) {
  EvalTask task{source.filename().string(),
                text::direction_to(target),
                read_lines(source),
                read_lines(reference),
                {}};
  if (task.sources.size() != task.references.size() || task.sources.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--src and --ref: expected as many lines of each, got " +
                    std::to_string(task.sources.size()) + " in " + source.string() + " and " +
                    std::to_string(task.references.size()) + " in " + reference.string());
  }
  return task;
}

EvalTask evenly_limited(const EvalTask& task, std::size_t limit) {
  const std::size_t size = task.sources.size();
  if (limit == 0 || limit >= size) return task;
  EvalTask part{task.set, task.direction, {}, {}, {}};
  for (std::size_t i = 0; i < limit; ++i) {
    const std::size_t at = i * size / limit;
    part.sources.push_back(task.sources[at]);
    part.references.push_back(task.references[at]);
    if (!task.strata.empty()) part.strata.push_back(task.strata[at]);
  }
  return part;
}

}  // namespace kda::eval
