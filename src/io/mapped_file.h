/// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace kda::io {

/// Read-only private mapping of a regular file; movable, unmapped on destruction. The file must not
/// be truncated while it is mapped (all writers of this project replace files, they never shorten
/// one). Errors: Error(kIo).
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  /// Empty for an empty file. The address is aligned to a page.
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace kda::io
