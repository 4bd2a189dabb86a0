#include <set>
#include <system_error>
#include <utility>

#include "io/atomic_file.h"
#include "io/escape.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "kda/error.h"

namespace kda::io {
namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";

/// file name -> tensors that the index places in it.
using WeightMap = std::map<std::string, std::set<std::string, std::less<>>>;

WeightMap read_index(const std::filesystem::path& path) {
  // Sorted JSON: a model has many thousand tensors. The limit is that of a safetensors header.
  const std::string what = escaped(path.string());
  const SortedJson json = parse_sorted_json(read_file(path, 100'000'000), what,
                                            {.max_depth = 4, .max_bytes = 100'000'000});
  const auto refuse = [&what](const std::string& reason) {
    throw Error(ErrorCode::kIo, what + ": " + reason);
  };
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    refuse("expected an object with an object \"weight_map\"");
  }
  WeightMap files;
  for (const auto& item : json["weight_map"].items()) {
    if (!item.value().is_string()) refuse("weight_map: " + escaped(item.key()) + ": not a string");
    const auto& file = item.value().get_ref<const std::string&>();
    // Only plain names: an index must not reach files outside its folder.
    if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos ||
        file.find('\0') != std::string::npos) {
      refuse("weight_map: " + escaped(item.key()) + ": " + escaped(file) + " is not a file name");
    }
    files[file].insert(item.key());
  }
  return files;
}

}  // namespace

SafetensorsSet SafetensorsSet::open(const std::filesystem::path& path) {
  std::filesystem::path source = path;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    source = path / kIndexName;
    if (!std::filesystem::exists(source, error)) source = path / kSingleName;
  }
  SafetensorsSet set;
  set.what_ = escaped(source.string());
  WeightMap index;
  if (source.extension() == ".json") {
    index = read_index(source);
    for (const auto& [name, tensors] : index) {
      set.files_.push_back(SafetensorsFile::open(source.parent_path() / name));
    }
  } else {
    set.files_.push_back(SafetensorsFile::open(source));
  }
  auto expected = index.begin();
  for (std::size_t i = 0; i < set.files_.size(); ++i) {
    const auto& file = set.files_[i];
    for (const auto& name : file.names()) {
      if (!index.empty() && !expected->second.contains(name)) {
        throw Error(ErrorCode::kIo,
                    file.what() + ": tensor " + escaped(name) + " is not in " + set.what_);
      }
      // Each name stands once in the weight map, so it cannot be in two files.
      set.file_of_.emplace(name, i);
      set.names_.push_back(name);
    }
    if (index.empty()) continue;
    for (const auto& name : expected->second) {
      if (!file.contains(name)) {
        throw Error(ErrorCode::kIo,
                    file.what() + ": tensor " + escaped(name) + " of " + set.what_ + " is missing");
      }
    }
    ++expected;
  }
  return set;
}

bool SafetensorsSet::contains(std::string_view name) const {
  return file_of_.find(name) != file_of_.end();
}

const StTensor& SafetensorsSet::info(std::string_view name) const {
  const auto it = file_of_.find(name);
  if (it == file_of_.end()) throw Error(ErrorCode::kIo, what_ + ": no tensor " + escaped(name));
  return files_[it->second].info(name);
}

const std::map<std::string, std::string>& SafetensorsSet::metadata() const {
  static const std::map<std::string, std::string> kNone;
  for (const auto& file : files_) {
    if (!file.metadata().empty()) return file.metadata();
  }
  return kNone;
}

}  // namespace kda::io
