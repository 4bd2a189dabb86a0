#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "io/escape.h"
#include "io/json.h"
#include "io/safetensors_writer.h"
#include "kda/error.h"

namespace kda::io {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference reader
constexpr std::string_view kMetadataKey = "__metadata__";

struct DtypeRow {
  StDtype dtype;
  std::string_view name;
  std::size_t bytes;
};

constexpr std::array kDtypes = {
    DtypeRow{StDtype::kF64, "F64", 8}, DtypeRow{StDtype::kF32, "F32", 4},
    DtypeRow{StDtype::kF16, "F16", 2}, DtypeRow{StDtype::kBF16, "BF16", 2},
    DtypeRow{StDtype::kI64, "I64", 8}, DtypeRow{StDtype::kI32, "I32", 4},
    DtypeRow{StDtype::kI16, "I16", 2}, DtypeRow{StDtype::kI8, "I8", 1},
    DtypeRow{StDtype::kU8, "U8", 1},   DtypeRow{StDtype::kBool, "BOOL", 1},
};

const DtypeRow& row_of(StDtype dtype) {
  const DtypeRow& row = kDtypes[static_cast<std::size_t>(dtype)];
  return row;
}

/// Throws Error(kIo) `<file>: tensor "name": reason`.
class Refuser {
 public:
  explicit Refuser(const std::string& what) : what_(what) {}
  [[noreturn]] void operator()(const std::string& reason) const {
    throw Error(ErrorCode::kIo, what_ + ": not a valid safetensors file: " + reason);
  }
  [[noreturn]] void operator()(std::string_view tensor, const std::string& reason) const {
    (*this)("tensor " + escaped(tensor) + ": " + reason);
  }

 private:
  const std::string& what_;
};

struct Parsed {
  std::string name;
  StTensor tensor;
  std::uint64_t begin;
  std::uint64_t end;
};

/// A value as written, in ASCII: as safe to print as `escaped` text, which would quote it twice.
std::string shown(const SortedJson& value) {
  constexpr std::size_t kMaxShown = 80;
  std::string text = value.dump(-1, ' ', true);
  if (text.size() > kMaxShown) text.replace(kMaxShown, std::string::npos, "…");
  return text;
}

std::uint64_t unsigned_or_refuse(const SortedJson& value, std::string_view tensor,
                                 const char* field, const Refuser& refuse) {
  // Larger values cannot be sizes; the limit keeps later sums free of overflow.
  constexpr auto kMax = std::uint64_t{std::numeric_limits<std::int64_t>::max()};
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMax) {
    refuse(tensor, std::string(field) + ": expected integers in [0, 2^63), got " + shown(value));
  }
  return value.get<std::uint64_t>();
}

StDtype dtype_or_refuse(const SortedJson& value, std::string_view tensor, const Refuser& refuse) {
  if (value.is_string()) {
    for (const auto& row : kDtypes) {
      if (row.name == value.get_ref<const std::string&>()) return row.dtype;
    }
  }
  refuse(tensor, "dtype " + shown(value) +
                     " is not supported; supported: F64, F32, F16, BF16, I64, I32, I16, I8, U8, "
                     "BOOL");
}

Parsed parse_tensor(const std::string& name, const SortedJson& entry,
                    std::span<const std::byte> data, const Refuser& refuse) {
  if (!entry.is_object()) refuse(name, "expected an object");
  for (const auto& item : entry.items()) {
    if (item.key() != "dtype" && item.key() != "shape" && item.key() != "data_offsets") {
      refuse(name, "unknown key " + escaped(item.key()));
    }
  }
  if (entry.size() != 3) refuse(name, "expected the keys dtype, shape and data_offsets");
  Parsed parsed{name, {dtype_or_refuse(entry["dtype"], name, refuse), {}, {}}, 0, 0};
  const auto& shape = entry["shape"];
  if (!shape.is_array()) refuse(name, "shape: expected an array");
  for (const auto& dim : shape) {
    parsed.tensor.shape.push_back(
        static_cast<std::int64_t>(unsigned_or_refuse(dim, name, "shape", refuse)));
  }
  std::int64_t elements = 0;
  try {
    elements = checked_elements(name, parsed.tensor.dtype, parsed.tensor.shape);
  } catch (const Error& e) {
    refuse(e.what());
  }
  const auto& offsets = entry["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2) {
    refuse(name, "data_offsets: expected [begin, end]");
  }
  parsed.begin = unsigned_or_refuse(offsets[0], name, "data_offsets", refuse);
  parsed.end = unsigned_or_refuse(offsets[1], name, "data_offsets", refuse);
  if (parsed.end < parsed.begin || parsed.end > data.size()) {
    refuse(name, "data_offsets [" + std::to_string(parsed.begin) + ", " +
                     std::to_string(parsed.end) + ") are not inside the " +
                     std::to_string(data.size()) + " bytes of data");
  }
  const std::uint64_t bytes = parsed.end - parsed.begin;
  const std::uint64_t expected =
      static_cast<std::uint64_t>(elements) * size_of(parsed.tensor.dtype);
  if (bytes != expected) {
    refuse(name, "shape and dtype need " + std::to_string(expected) + " bytes, data_offsets give " +
                     std::to_string(bytes));
  }
  parsed.tensor.data = data.subspan(parsed.begin, bytes);
  return parsed;
}

}  // namespace

std::string_view name_of(StDtype dtype) { return row_of(dtype).name; }
std::size_t size_of(StDtype dtype) { return row_of(dtype).bytes; }

std::int64_t StTensor::num_elements() const {
  return static_cast<std::int64_t>(data.size() / size_of(dtype));
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  auto mapping = std::make_shared<const MappedFile>(path);
  SafetensorsFile file = parse(mapping->bytes(), escaped(path.string()));
  file.file_ = std::move(mapping);
  return file;
}

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, std::string_view what) {
  SafetensorsFile file;
  file.what_ = what;
  const Refuser refuse(file.what_);
  std::uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes)) {
    refuse(std::to_string(bytes.size()) + " bytes, at least 8 expected");
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  bytes = bytes.subspan(sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes) {
    refuse("header of " + std::to_string(header_bytes) + " bytes, at most " +
           std::to_string(kMaxHeaderBytes) + " allowed");
  }
  if (header_bytes > bytes.size()) {
    refuse("header of " + std::to_string(header_bytes) + " bytes, but only " +
           std::to_string(bytes.size()) + " follow");
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), header_bytes);
  const auto data = bytes.subspan(header_bytes);
  if (!text.starts_with('{')) refuse("the header does not begin with '{'");

  // Depth 3: {"name": {"shape": [...]}}.
  const SortedJson header = parse_sorted_json(text, file.what_ + ": header",
                                              {.max_depth = 3, .max_bytes = kMaxHeaderBytes});
  if (!header.is_object()) refuse("the header is not an object");
  std::vector<Parsed> tensors;
  for (const auto& item : header.items()) {
    if (item.key() == kMetadataKey) {
      if (!item.value().is_object()) refuse("__metadata__: expected an object");
      for (const auto& entry : item.value().items()) {
        if (!entry.value().is_string()) {
          refuse("__metadata__: " + escaped(entry.key()) + " is not a string");
        }
        file.metadata_.emplace(entry.key(), entry.value().get<std::string>());
      }
      continue;
    }
    tensors.push_back(parse_tensor(item.key(), item.value(), data, refuse));
  }

  // In the order of the data each tensor must begin where the one before ended.
  std::sort(tensors.begin(), tensors.end(), [](const Parsed& a, const Parsed& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t expected = 0;
  for (auto& parsed : tensors) {
    if (parsed.begin != expected) {
      refuse(parsed.name, "data begins at " + std::to_string(parsed.begin) + ", " +
                              std::to_string(expected) + " expected: the data " +
                              (parsed.begin < expected ? "overlap" : "have a hole"));
    }
    expected = parsed.end;
    file.names_.push_back(parsed.name);
    file.tensors_.emplace(std::move(parsed.name), std::move(parsed.tensor));
  }
  if (expected != data.size()) {
    refuse(std::to_string(data.size() - expected) + " bytes after the last tensor");
  }
  return file;
}

bool SafetensorsFile::contains(std::string_view name) const {
  return tensors_.find(name) != tensors_.end();
}

const StTensor& SafetensorsFile::info(std::string_view name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) throw Error(ErrorCode::kIo, what_ + ": no tensor " + escaped(name));
  return it->second;
}

}  // namespace kda::io
