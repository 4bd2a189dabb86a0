/// Files that are either complete or absent: temporary file, fsync, rename, fsync of the folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace kda::io {

/// Writes a file under a temporary name beside `path` and gives it that name in `commit()`.
/// Until then readers see the old file or none; a destroyed writer leaves no temporary file.
/// After a crash a leftover can be recognised by `is_temporary_name` and removed.
/// Errors: Error(kIo) with the path, the step and the system's text.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends bytes. Buffered: an error may surface in a later call.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Overwrites bytes that were already written; for headers that are known only at the end.
  void overwrite(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Bytes appended so far.
  std::uint64_t size() const { return size_; }
  /// Makes the file durable and visible. Call once; nothing may be written afterwards.
  void commit();

 private:
  void flush();
  [[noreturn]] void fail(const char* step);

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::string buffer_;
  std::uint64_t size_ = 0;
  int fd_ = -1;
};

/// Writes a whole file atomically.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);

/// True for names that `AtomicFile` gives to unfinished files.
bool is_temporary_name(std::string_view file_name);

/// Removes unfinished files that a killed process left in `folder`; returns how many.
std::size_t remove_temporary_files(const std::filesystem::path& folder);

/// Makes the creation, renaming and removal of entries in `folder` durable.
void sync_folder(const std::filesystem::path& folder);

/// Whole content of a regular file. Error(kIo) if it is missing, not a file or over `max_bytes`.
std::string read_file(const std::filesystem::path& path, std::uint64_t max_bytes = 64u << 20);

/// Error(kIo): `<what> <path>: <text of errno>`. For callers of system functions in this layer.
[[noreturn]] void throw_errno(std::string_view what, const std::filesystem::path& path);

}  // namespace kda::io
