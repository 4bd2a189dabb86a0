#include "io/safetensors_writer.h"

#include <algorithm>
#include <set>
#include <utility>

#include "io/escape.h"
#include "io/json.h"
#include "io/utf8.h"
#include "kda/error.h"

namespace kda::io {
namespace {

[[noreturn]] void refuse(std::string_view tensor, const std::string& reason) {
  throw Error(ErrorCode::kInvalidArgument, "tensor " + escaped(tensor) + ": " + reason);
}

std::string header_text(const std::vector<StSpec>& tensors, const std::vector<std::uint64_t>& ends,
                        const std::map<std::string, std::string>& metadata) {
  // Written piece by piece: an ordered JSON object would search all its keys at every insertion.
  std::string text = "{";
  const auto comma = [&text] {
    if (text.size() > 1) text += ',';
  };
  if (!metadata.empty()) text += "\"__metadata__\":" + SortedJson(metadata).dump();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t begin = i == 0 ? 0 : ends[i - 1];
    comma();
    text += SortedJson(tensors[i].name).dump();
    text += ":{\"dtype\":\"" + std::string(name_of(tensors[i].dtype)) + "\",\"shape\":";
    text += SortedJson(tensors[i].shape).dump();
    text += ",\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(ends[i]) + "]}";
  }
  text += '}';
  // The data section starts at a multiple of 8, as the reference writer does it.
  while (text.size() % 8 != 0)
    text += ' ';
  return text;
}

}  // namespace

std::int64_t checked_elements(std::string_view name, StDtype dtype,
                              std::span<const std::int64_t> shape) {
  std::int64_t elements = 1;
  bool overflow = false;
  bool empty = false;
  for (const std::int64_t dim : shape) {
    if (dim < 0) refuse(name, "shape: negative dimension " + std::to_string(dim));
    empty = empty || dim == 0;
    overflow = __builtin_mul_overflow(elements, dim == 0 ? 1 : dim, &elements) || overflow;
  }
  std::int64_t bytes = 0;
  overflow = __builtin_mul_overflow(elements, static_cast<std::int64_t>(size_of(dtype)), &bytes) ||
             overflow;
  // A zero dimension does not excuse the others: their product overflows in other readers.
  if (overflow) refuse(name, "shape: more than 2^63 bytes");
  return empty ? 0 : elements;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<StSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(escaped(path.string())), tensors_(std::move(tensors)), file_(path) {
  std::set<std::string_view> names;
  for (const auto& spec : tensors_) {
    if (spec.name == "__metadata__") refuse(spec.name, "the name is reserved");
    if (!is_utf8(spec.name)) refuse(spec.name, "the name is not UTF-8");
    if (!names.insert(spec.name).second) refuse(spec.name, "declared twice");
    const auto elements = checked_elements(spec.name, spec.dtype, spec.shape);
    std::uint64_t end = 0;
    if (__builtin_add_overflow(data_bytes_,
                               static_cast<std::uint64_t>(elements) * size_of(spec.dtype), &end)) {
      refuse(spec.name, "the file would have more than 2^63 bytes");
    }
    data_bytes_ = end;
    ends_.push_back(data_bytes_);
  }
  for (const auto& [key, value] : metadata) {
    if (!is_utf8(key) || !is_utf8(value)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "metadata " + escaped(key) + ": key and value must be UTF-8");
    }
  }
  const std::string header = header_text(tensors_, ends_, metadata);
  const std::uint64_t size = header.size();
  file_.write(std::as_bytes(std::span(&size, 1)));
  file_.write(header);
  data_begin_ = sizeof(size) + size;
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  if (bytes.size() > data_bytes_ - written_) {
    throw Error(ErrorCode::kInvalidArgument, path_ + ": more than the declared " +
                                                 std::to_string(data_bytes_) +
                                                 " bytes of tensor data");
  }
  file_.write(bytes);
  written_ += bytes.size();
}

void SafetensorsWriter::write_tensor(std::string_view name, std::span<const std::byte> bytes) {
  const auto it = std::find_if(tensors_.begin(), tensors_.end(),
                               [name](const StSpec& spec) { return spec.name == name; });
  const auto i = static_cast<std::size_t>(it - tensors_.begin());
  if (it == tensors_.end()) refuse(name, "not declared");
  const std::uint64_t begin = i == 0 ? 0 : ends_[i - 1];
  if (begin != written_) {
    refuse(name, "its data begin at byte " + std::to_string(begin) + ", but " +
                     std::to_string(written_) + " were written: tensors out of order");
  }
  if (bytes.size() != ends_[i] - begin) {
    refuse(name, "expected " + std::to_string(ends_[i] - begin) + " bytes, got " +
                     std::to_string(bytes.size()));
  }
  write(bytes);
}

void SafetensorsWriter::commit() {
  if (written_ != data_bytes_) {
    throw Error(ErrorCode::kInvalidArgument, path_ + ": " + std::to_string(written_) + " of " +
                                                 std::to_string(data_bytes_) +
                                                 " bytes of tensor data written");
  }
  file_.commit();
}

}  // namespace kda::io
