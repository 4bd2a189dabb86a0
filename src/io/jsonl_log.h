/// Append-only metrics log: one JSON object per line, valid up to the last whole line after a
/// crash.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"

namespace kda::io {

/// What opening an existing log found.
struct JsonlRecovery {
  std::uint64_t kept_lines = 0;
  std::uint64_t dropped_lines = 0;       ///< whole lines after the step that is resumed from
  std::uint64_t dropped_torn_bytes = 0;  ///< bytes of a last line that a crash cut short
};

/// Each `append` is one write(2) to a file opened with O_APPEND. After kill -9 all lines but the
/// last are whole; that one may be cut (Linux stops a write between two pages for a fatal signal),
/// which readers leave out and the next opening removes. (Not fsynced per line: a power cut may
/// lose the last seconds, never more than the tail.) Errors: Error(kIo).
class JsonlLog {
 public:
  /// Opens for appending, creating the file if needed. A torn last line is removed. With
  /// `resume_step`, every line from the first one whose integer field "step" is greater is removed,
  /// so that the steps that will run again do not appear twice. A damaged line in the middle is an
  /// error naming the line: it was not made by a crash.
  explicit JsonlLog(const std::filesystem::path& path,
                    std::optional<std::int64_t> resume_step = std::nullopt);
  ~JsonlLog();
  JsonlLog(const JsonlLog&) = delete;
  JsonlLog& operator=(const JsonlLog&) = delete;

  /// Appends one line. NaN and infinities, which JSON cannot say, become the strings "nan", "inf",
  /// "-inf" rather than null.
  void append(const Json& object);
  /// fsync.
  void sync();

  const JsonlRecovery& recovery() const { return recovery_; }

 private:
  std::filesystem::path path_;
  JsonlRecovery recovery_;
  int fd_ = -1;
};

/// All whole lines of a log; a torn last line is left out. Error(kIo) naming the line otherwise.
std::vector<Json> read_jsonl(const std::filesystem::path& path);

}  // namespace kda::io
