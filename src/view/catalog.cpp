#include "view/catalog.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <system_error>
#include <utility>

#include "io/escape.h"
#include "kda/error.h"

namespace kda::view {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kMaxFiles = 64;
constexpr const char* kModel = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kMetrics = "metrics.jsonl";

[[noreturn]] void refuse_file(const fs::path& path, const std::string& reason) {
  throw Error(ErrorCode::kIo, io::escaped(path.string()) + ": " + reason);
}

bool holds(const fs::path& folder, const char* name) {
  std::error_code ignored;
  return fs::exists(folder / name, ignored);
}

bool is_checkpoint(const fs::path& folder) {
  return holds(folder, kModel) || holds(folder, kIndex);
}

/// "run" of "runs/run", "runs/run/" and, from inside it, ".".
std::string last_name(const fs::path& path) {
  std::error_code ignored;
  fs::path absolute = fs::absolute(path, ignored).lexically_normal();
  if (!absolute.has_filename()) absolute = absolute.parent_path();
  return absolute.filename().string();
}

/// N of "step-N" or "step-N-micro-M", by which checkpoints of a run are ordered.
std::optional<std::pair<std::int64_t, std::int64_t>> step_of(const std::string& name) {
  std::int64_t step = 0;
  std::int64_t micro = 0;
  if (!name.starts_with("step-")) return std::nullopt;
  const char* end = name.data() + name.size();
  auto [at, fault] = std::from_chars(name.data() + 5, end, step);
  if (fault != std::errc()) return std::nullopt;
  const std::string_view rest(at, static_cast<std::size_t>(end - at));
  if (rest.empty()) return std::pair(step, micro);
  constexpr std::string_view kMicro = "-micro-";
  if (!rest.starts_with(kMicro)) return std::nullopt;
  const auto second = std::from_chars(rest.data() + kMicro.size(), end, micro);
  if (second.ec != std::errc() || second.ptr != end) return std::nullopt;
  return std::pair(step, micro);
}

std::optional<fs::path> newest_checkpoint(const fs::path& run) {
  std::optional<fs::path> newest;
  std::pair<std::int64_t, std::int64_t> newest_step;
  std::error_code fault;
  for (const auto& entry : fs::directory_iterator(run, fault)) {
    const auto step = step_of(entry.path().filename().string());
    if (!step || !is_checkpoint(entry.path()) || (newest && *step <= newest_step)) continue;
    newest = entry.path();
    newest_step = *step;
  }
  if (fault) refuse_file(run, "cannot list the folder: " + fault.message());
  return newest;
}

}  // namespace

std::string_view name_of(FileKind kind) {
  switch (kind) {
    case FileKind::kTensors:
      return "tensors";
    case FileKind::kTrace:
      return "trace";
    case FileKind::kMetrics:
      return "metrics";
  }
  return "";
}

Catalog::Catalog(const std::vector<fs::path>& paths) {
  if (paths.empty() || paths.size() > kMaxFiles) {
    throw Error(ErrorCode::kInvalidArgument, "FILE: expected 1 to " + std::to_string(kMaxFiles) +
                                                 " files, got " + std::to_string(paths.size()));
  }
  for (const fs::path& path : paths)
    add(path);
  name_tensors();
}

void Catalog::add(const fs::path& path) {
  std::error_code fault;
  const fs::file_status status = fs::status(path, fault);
  if (!fs::exists(status)) refuse_file(path, "no such file or folder");
  const std::string name = path.filename().string();
  if (fs::is_directory(status)) {
    if (holds(path, kMetrics)) return add_run(path);
    if (is_checkpoint(path)) return add_tensors(path, last_name(path));
    refuse_file(
        path, std::string("the folder has none of ") + kModel + ", " + kIndex + " and " + kMetrics);
  }
  if (!fs::is_regular_file(status)) refuse_file(path, "not a file");
  if (name.ends_with(".safetensors") || name.ends_with(".index.json")) {
    return add_tensors(path, name);
  }
  if (name.ends_with(".jsonl")) return add_metrics(path, name);
  if (name.ends_with(".json")) return add_trace(path);
  refuse_file(path,
              "expected a .safetensors file, its .index.json, a trace (.json), metrics (.jsonl), "
              "or the folder of a checkpoint or run");
}

void Catalog::add_run(const fs::path& folder) {
  const std::string name = last_name(folder);
  add_metrics(folder / kMetrics, name + "/" + kMetrics);
  if (const auto checkpoint = newest_checkpoint(folder)) {
    add_tensors(*checkpoint, name + "/" + checkpoint->filename().string());
  }
}

void Catalog::add_tensors(const fs::path& path, const std::string& label) {
  auto set = std::make_unique<io::SafetensorsSet>(io::SafetensorsSet::open(path));
  // What `kda extract` says about its tensors is read by the page, which knows one version of it.
  const auto& said = set->metadata();
  if (const auto format = said.find("format");
      format != said.end() && format->second == "kda-extract") {
    const auto version = said.find("version");
    if (version == said.end() || version->second != "1") {
      refuse_file(path, "extracted tensors: version: expected 1, got " +
                            (version == said.end() ? "none" : io::escaped(version->second, 40)));
    }
  }
  OpenFile file{unique_label(label), path, FileKind::kTensors, std::move(set), nullptr};
  if (!fs::is_directory(path)) {
    raw_.try_emplace(file.label, path);
  } else if (holds(path, kModel)) {
    raw_.try_emplace(file.label + "/" + kModel, path / kModel);
  }
  files_.push_back(std::move(file));
}

void Catalog::add_trace(const fs::path& path) {
  OpenFile file{unique_label(path.filename().string()), path, FileKind::kTrace, nullptr,
                std::make_unique<Trace>(path)};
  raw_.try_emplace(file.label, path);
  files_.push_back(std::move(file));
}

void Catalog::add_metrics(const fs::path& path, const std::string& label) {
  OpenFile file{unique_label(label), path, FileKind::kMetrics, nullptr, nullptr};
  raw_.try_emplace(file.label, path);
  files_.push_back(std::move(file));
}

std::string Catalog::unique_label(const std::string& wanted) const {
  std::string label = wanted;
  for (int n = 2; find_file(label) != nullptr; ++n) {
    label = wanted + " (" + std::to_string(n) + ")";
  }
  return label;
}

void Catalog::name_tensors() {
  const auto with_tensors = std::count_if(files_.begin(), files_.end(), [](const OpenFile& file) {
    return file.kind == FileKind::kTensors;
  });
  for (const OpenFile& file : files_) {
    if (file.kind != FileKind::kTensors) continue;
    for (const std::string& name : file.tensors->names()) {
      std::string key = with_tensors > 1 ? file.label + ":" + name : name;
      // A name may hold any character, so `a:b` of one file and `b` of a file `a:` can meet.
      if (!by_key_.try_emplace(key, entries_.size()).second) {
        refuse_file(file.path, "tensor " + io::escaped(name) + ": its key " + io::escaped(key) +
                                   " is another file's too");
      }
      entries_.push_back({std::move(key), name, &file, &file.tensors->info(name)});
    }
  }
}

const TensorEntry* Catalog::find_tensor(std::string_view key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : &entries_[found->second];
}

const OpenFile* Catalog::find_file(std::string_view label) const {
  const auto found = std::find_if(files_.begin(), files_.end(),
                                  [&](const OpenFile& file) { return file.label == label; });
  return found == files_.end() ? nullptr : &*found;
}

const fs::path* Catalog::find_raw(std::string_view name) const {
  const auto found = raw_.find(name);
  return found == raw_.end() ? nullptr : &found->second;
}

}  // namespace kda::view
