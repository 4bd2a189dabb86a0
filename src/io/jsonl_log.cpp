#include "io/jsonl_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <system_error>
#include <utility>

#include "io/atomic_file.h"
#include "io/escape.h"
#include "io/mapped_file.h"
#include "kda/error.h"

namespace kda::io {
namespace {

/// Calls `visit(line number, line, offset of the byte after its newline)` for every whole line;
/// returns the length of the whole lines. A false result of `visit` stops.
template <class Visit>
std::uint64_t for_each_line(std::string_view text, const Visit& visit) {
  std::uint64_t at = 0;
  for (std::uint64_t number = 1; at < text.size(); ++number) {
    const auto end = text.find('\n', at);
    if (end == std::string_view::npos) break;
    if (!visit(number, text.substr(at, end - at))) break;
    at = end + 1;
  }
  return at;
}

Json parse_line(std::string_view line, std::uint64_t number, const std::string& what) {
  Json json = parse_json(line, what + " line " + std::to_string(number));
  if (!json.is_object()) {
    throw Error(ErrorCode::kIo, what + " line " + std::to_string(number) + ": not an object");
  }
  return json;
}

bool is_after(const Json& line, std::int64_t resume_step) {
  const auto step = line.find("step");
  if (step == line.end() || !step->is_number_integer()) return false;
  // Values over 2^63 are kept unsigned and would turn negative.
  if (step->is_number_unsigned()) return std::cmp_greater(step->get<std::uint64_t>(), resume_step);
  return step->get<std::int64_t>() > resume_step;
}

/// JSON has no words for NaN and the infinities, and nlohmann writes null for them, which a reader
/// cannot tell from "not measured".
void name_non_finite(Json& value) {
  if (value.is_structured()) {
    for (auto& item : value)
      name_non_finite(item);
  } else if (value.is_number_float()) {
    const auto v = value.get<double>();
    if (std::isnan(v)) value = "nan";
    if (std::isinf(v)) value = v > 0 ? "inf" : "-inf";
  }
}

}  // namespace

JsonlLog::JsonlLog(const std::filesystem::path& path, std::optional<std::int64_t> resume_step)
    : path_(path) {
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) throw_errno("cannot open", path);
  try {
    struct stat status {};
    if (::fstat(fd_, &status) != 0) throw_errno("cannot stat", path);
    if (!S_ISREG(status.st_mode)) return;  // a pipe or terminal has nothing to recover
    std::uint64_t keep = 0;
    const auto total = static_cast<std::uint64_t>(status.st_size);
    {
      const MappedFile file(path);
      const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                                  file.bytes().size());
      const std::string what = escaped(path.string());
      bool dropping = false;
      const std::uint64_t whole =
          for_each_line(text, [&](std::uint64_t number, std::string_view line) {
            const Json json = parse_line(line, number, what);
            dropping = dropping || (resume_step && is_after(json, *resume_step));
            if (dropping) {
              ++recovery_.dropped_lines;
            } else {
              ++recovery_.kept_lines;
              keep += line.size() + 1;
            }
            return true;
          });
      recovery_.dropped_torn_bytes = total - whole;
    }
    if (keep < total && ::ftruncate(fd_, static_cast<off_t>(keep)) != 0) {
      throw_errno("cannot truncate", path);
    }
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

JsonlLog::~JsonlLog() {
  if (fd_ >= 0) ::close(fd_);
}

void JsonlLog::append(const Json& object) {
  Json copy = object;
  name_non_finite(copy);
  const std::string line = copy.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  // One write: with O_APPEND the line lands as a whole. A short write (disk full) would leave half
  // a line in front of later ones, so it is taken back.
  ssize_t n = 0;
  do {
    n = ::write(fd_, line.data(), line.size());
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(line.size())) return;
  const int code = n < 0 ? errno : ENOSPC;
  struct stat status {};
  if (n > 0 && ::fstat(fd_, &status) == 0 &&
      ::ftruncate(fd_, status.st_size - static_cast<off_t>(n)) != 0) {
    // Nothing more can be done; the torn line will be removed when the log is opened again.
  }
  errno = code;
  throw_errno("cannot append to", path_);
}

void JsonlLog::sync() {
  if (::fsync(fd_) != 0) throw_errno("cannot sync", path_);
}

std::vector<Json> read_jsonl(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  const std::string what = escaped(path.string());
  std::vector<Json> lines;
  for_each_line(text, [&](std::uint64_t number, std::string_view line) {
    lines.push_back(parse_line(line, number, what));
    return true;
  });
  return lines;
}

}  // namespace kda::io
