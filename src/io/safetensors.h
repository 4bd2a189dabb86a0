/// Reading of safetensors files: names, dtypes, shapes and memory-mapped data.
///
/// Format: u64 little-endian header length, that many bytes of JSON
/// `{name: {"dtype", "shape", "data_offsets": [begin, end)}, "__metadata__": {string: string}}`,
/// then the data, densely packed. (Hugging Face, "safetensors: metadata parsing".)
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/mapped_file.h"

namespace kda::io {

/// Element types of the format that this project reads and writes.
enum class StDtype : std::uint8_t { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

/// "F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL".
std::string_view name_of(StDtype dtype);
std::size_t size_of(StDtype dtype);

/// One tensor of an open file. `data` points into the mapping and lives as long as the file object.
/// It may be unaligned for its dtype: copy it with memcpy.
struct StTensor {
  StDtype dtype;
  std::vector<std::int64_t> shape;  ///< empty for a scalar
  std::span<const std::byte> data;  ///< row-major, little-endian

  std::int64_t num_elements() const;
};

/// A validated, memory-mapped safetensors file. `open` refuses, with Error(kIo) naming the file,
/// the tensor and the reason: a header longer than 100 MB or than the file, JSON that is not an
/// object, nested too deep or with duplicate names, unknown keys or dtypes, negative or overflowing
/// shapes, offsets outside the data, a span that is not shape × dtype, overlaps, holes and trailing
/// bytes.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::filesystem::path& path);
  /// Parses bytes that stay alive as long as the object; `what` names them in errors.
  static SafetensorsFile parse(std::span<const std::byte> bytes, std::string_view what);

  /// Names in the order of their data.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(std::string_view name) const;
  /// Error(kIo) naming the file when there is no such tensor.
  const StTensor& info(std::string_view name) const;
  /// `__metadata__`, empty when absent.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// The path, or what `parse` was told.
  const std::string& what() const { return what_; }

 private:
  SafetensorsFile() = default;

  std::string what_;
  std::shared_ptr<const MappedFile> file_;
  std::vector<std::string> names_;
  std::map<std::string, StTensor, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// One or several files seen as one set of tensors: a `.safetensors` file, a `.index.json`
/// (`{"metadata": {...}, "weight_map": {name: file}}`), or a folder that holds
/// `model.safetensors.index.json` or `model.safetensors`. Files named in an index must lie in the
/// index's own folder; every tensor of the map must be in its file, and no file may hold others.
class SafetensorsSet {
 public:
  static SafetensorsSet open(const std::filesystem::path& path);

  /// Names in the order of files and data.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(std::string_view name) const;
  const StTensor& info(std::string_view name) const;
  /// Metadata of the first file that has any.
  const std::map<std::string, std::string>& metadata() const;
  const std::vector<SafetensorsFile>& files() const { return files_; }

 private:
  std::string what_;
  std::vector<SafetensorsFile> files_;
  std::vector<std::string> names_;
  std::map<std::string, std::size_t, std::less<>> file_of_;
};

}  // namespace kda::io
