/// A folder for targets of code that reads files: in memory where the system has /dev/shm.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace kda::fuzz {

/// One per process; removed at its normal end.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& target) {
    const std::filesystem::path shm = "/dev/shm";
    const auto parent = std::filesystem::exists(shm) ? shm : std::filesystem::temp_directory_path();
    path_ = parent / ("kda-fuzz-" + target + "-" + std::to_string(::getpid()));
    std::filesystem::create_directories(path_);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  /// Writes or replaces the file `name` and returns its path.
  std::filesystem::path put(const std::string& name, const std::uint8_t* data,
                            std::size_t size) const {
    auto file = path_ / name;
    std::ofstream(file, std::ios::binary | std::ios::trunc)
        .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
    return file;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace kda::fuzz
