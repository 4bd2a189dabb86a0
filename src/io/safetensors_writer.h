/// Writing of safetensors files, streaming and atomic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/atomic_file.h"
#include "io/safetensors.h"

namespace kda::io {

/// What a tensor will be; data follows later.
struct StSpec {
  std::string name;
  StDtype dtype;
  std::vector<std::int64_t> shape;
};

/// Writes one file: all tensors are declared first (the header precedes the data), then their bytes
/// arrive in the declared order, one tensor at a time or in pieces, so that a checkpoint never
/// needs a second copy of the model in memory.
///
///   SafetensorsWriter w(path, {{"w", StDtype::kF32, {2, 3}}}, {{"format", "pt"}});
///   w.write(bytes_of_w);
///   w.commit();
///
/// The file appears under its name in `commit()` only, complete and synced. Errors:
/// Error(kInvalidArgument) for duplicate or reserved names, names that are not UTF-8, negative or
/// overflowing shapes, too many or too few bytes; Error(kIo) from the file system.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<StSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {});

  /// All bytes of the tensor `name`, which must be the next one declared: catches a wrong order.
  void write_tensor(std::string_view name, std::span<const std::byte> bytes);
  /// Next bytes of the data section; may end inside a tensor or span several.
  void write(std::span<const std::byte> bytes);
  /// Error(kInvalidArgument) if bytes are missing.
  void commit();

  /// Bytes that the whole file will have.
  std::uint64_t file_bytes() const { return data_begin_ + data_bytes_; }

 private:
  std::string path_;
  std::vector<StSpec> tensors_;
  std::vector<std::uint64_t> ends_;  ///< end offset of each tensor in the data section
  std::uint64_t data_begin_ = 0;
  std::uint64_t data_bytes_ = 0;
  std::uint64_t written_ = 0;
  AtomicFile file_;
};

/// Number of elements, or Error(kInvalidArgument) naming the tensor if a dimension is negative or
/// the byte count does not fit 63 bits.
std::int64_t checked_elements(std::string_view name, StDtype dtype,
                              std::span<const std::int64_t> shape);

}  // namespace kda::io
