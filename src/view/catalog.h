/// The files that a person named, opened and checked: nothing else is ever read.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"
#include "view/trace.h"

namespace kda::view {

enum class FileKind : std::uint8_t { kTensors, kTrace, kMetrics };

/// "tensors", "trace", "metrics".
std::string_view name_of(FileKind kind);

struct OpenFile {
  std::string label;  ///< unique; the file's name as far as that is enough
  std::filesystem::path path;
  FileKind kind = FileKind::kTensors;
  std::unique_ptr<io::SafetensorsSet> tensors;
  std::unique_ptr<Trace> trace;
};

struct TensorEntry {
  std::string key;  ///< the name; with several files of tensors `label:name`
  std::string name;
  const OpenFile* file;
  const io::StTensor* tensor;
};

/// What each path may be:
///   *.safetensors                    tensors (a checkpoint, extracted tensors)
///   *.index.json, or a folder with model.safetensors or model.safetensors.index.json: a checkpoint
///   *.json                           a trace
///   *.jsonl                          the metrics of a run
///   a folder with metrics.jsonl      a run: its metrics, and its newest checkpoint if it has one
class Catalog {
 public:
  /// Error(kIo) naming the first path that is missing, of no known kind, or damaged;
  /// Error(kInvalidArgument) when there are no paths or more than 64.
  explicit Catalog(const std::vector<std::filesystem::path>& paths);

  const std::deque<OpenFile>& files() const { return files_; }
  /// Every tensor, in the order of files and data.
  const std::vector<TensorEntry>& tensors() const { return entries_; }
  const TensorEntry* find_tensor(std::string_view key) const;
  /// Null when no file has this label.
  const OpenFile* find_file(std::string_view label) const;
  /// The path of a file that may be sent as it is, by its label (of a checkpoint's folder:
  /// `label/model.safetensors`). Null for every other name.
  const std::filesystem::path* find_raw(std::string_view name) const;

 private:
  void add(const std::filesystem::path& path);
  void add_run(const std::filesystem::path& folder);
  void add_tensors(const std::filesystem::path& path, const std::string& label);
  void add_trace(const std::filesystem::path& path);
  void add_metrics(const std::filesystem::path& path, const std::string& label);
  std::string unique_label(const std::string& wanted) const;
  void name_tensors();

  std::deque<OpenFile> files_;
  std::vector<TensorEntry> entries_;
  std::map<std::string, std::size_t, std::less<>> by_key_;
  std::map<std::string, std::filesystem::path, std::less<>> raw_;
};

}  // namespace kda::view
