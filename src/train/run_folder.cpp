#include "train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <string_view>
#include <system_error>

#include "io/atomic_file.h"
#include "io/config_reader.h"
#include "io/manifest.h"
#include "kda/error.h"

namespace kda::train {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kTemporaryPrefix = ".tmp-";
constexpr const char* kBestName = "best.json";

[[noreturn]] void fail_folder(const std::string& text) { throw Error(ErrorCode::kIo, text); }

std::optional<std::int64_t> parse_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || status != std::errc{} || end != text.data() + text.size() || value < 0) {
    return std::nullopt;
  }
  return value;
}

/// Swaps two folders in one step, so that a crash leaves one of them under the final name.
bool exchange(const fs::path& a, const fs::path& b) {
#ifdef RENAME_EXCHANGE
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
#else
  (void)a, (void)b;
  errno = ENOSYS;
  return false;
#endif
}

void publish(const fs::path& temporary, const fs::path& final_path) {
  if (!fs::exists(final_path)) {
    if (std::rename(temporary.c_str(), final_path.c_str()) != 0) {
      io::throw_errno("cannot rename into place", final_path);
    }
    return;
  }
  if (!exchange(temporary, final_path)) {
    // A file system without exchange: set the old one aside first. Its name marks it as a leftover.
    const fs::path aside = temporary.string() + "-old";
    if (std::rename(final_path.c_str(), aside.c_str()) != 0 ||
        std::rename(temporary.c_str(), final_path.c_str()) != 0) {
      io::throw_errno("cannot rename into place", final_path);
    }
    fs::remove_all(aside);
    return;
  }
  fs::remove_all(temporary);
}

}  // namespace

std::string folder_name(const RunPoint& point) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "step-%06lld", static_cast<long long>(point.step));
  std::string name = buffer;
  if (point.micro > 0) name += "-micro-" + std::to_string(point.micro);
  return name;
}

std::optional<RunPoint> parse_folder_name(const std::string& name) {
  constexpr std::string_view kStep = "step-";
  constexpr std::string_view kMicro = "-micro-";
  std::string_view rest = name;
  if (!rest.starts_with(kStep)) return std::nullopt;
  rest.remove_prefix(kStep.size());
  RunPoint point;
  if (const auto at = rest.find(kMicro); at != std::string_view::npos) {
    const auto micro = parse_number(rest.substr(at + kMicro.size()));
    if (!micro || *micro == 0) return std::nullopt;
    point.micro = *micro;
    rest = rest.substr(0, at);
  }
  const auto step = parse_number(rest);
  if (!step) return std::nullopt;
  point.step = *step;
  return point;
}

std::vector<std::string> checkpoint_faults(const fs::path& folder) {
  try {
    const io::Manifest manifest = io::read_manifest(folder);
    if (manifest.kind != kCheckpointKind) {
      return {"the manifest says '" + manifest.kind + "', expected 'checkpoint'"};
    }
    return io::verify_manifest(folder, manifest, io::VerifyLevel::kHashes);
  } catch (const Error& error) {
    return {error.what()};
  }
}

std::vector<CheckpointFolder> list_checkpoints(const fs::path& run, bool verify) {
  std::vector<CheckpointFolder> list;
  std::error_code status;
  for (const auto& entry : fs::directory_iterator(run, status)) {
    if (const auto point = parse_folder_name(entry.path().filename().string())) {
      if (entry.is_directory()) list.push_back({entry.path(), *point, {}});
    }
  }
  if (status && status != std::errc::no_such_file_or_directory) {
    fail_folder("cannot read folder " + run.string() + ": " + status.message());
  }
  std::sort(list.begin(), list.end(),
            [](const auto& a, const auto& b) { return a.point > b.point; });
  if (verify) {
    for (CheckpointFolder& folder : list)
      folder.faults = checkpoint_faults(folder.path);
  }
  return list;
}

std::optional<CheckpointFolder> last_checkpoint(
    const fs::path& run, const std::function<void(const CheckpointFolder&)>& on_broken) {
  for (CheckpointFolder& folder : list_checkpoints(run, false)) {
    folder.faults = checkpoint_faults(folder.path);
    if (folder.faults.empty()) return folder;
    if (on_broken) on_broken(folder);
  }
  return std::nullopt;
}

std::optional<BestCheckpoint> read_best(const fs::path& run) {
  const fs::path path = run / kBestName;
  if (!fs::exists(path)) return std::nullopt;
  const io::Json json = io::read_json_file(path);
  io::ConfigReader reader(json, "");
  BestCheckpoint best;
  try {
    best.step = reader.require_int("step", 0);
    best.heldout_loss = reader.require_number("heldout_loss");
    if (reader.has("success_rate")) best.success_rate = reader.require_number("success_rate");
    reader.finish();
  } catch (const Error& error) {
    fail_folder(path.string() + ": " + error.what());
  }
  return best;
}

void write_best(const fs::path& run, const BestCheckpoint& best) {
  io::Json json = {{"step", best.step}, {"heldout_loss", best.heldout_loss}};
  if (best.success_rate) json["success_rate"] = *best.success_rate;
  io::write_json_file(run / kBestName, json);
}

void clear_best(const fs::path& run) {
  std::error_code ignored;  // usually there is none
  fs::remove(run / kBestName, ignored);
}

CheckpointFolder resolve_checkpoint(const fs::path& given,
                                    const std::function<void(const CheckpointFolder&)>& on_broken) {
  fs::path name = given;
  if (!name.has_filename()) name = name.parent_path();  // a trailing slash
  const auto checked = [&](const fs::path& path) {
    CheckpointFolder folder{path, {}, checkpoint_faults(path)};
    folder.point = parse_folder_name(path.filename().string()).value_or(RunPoint{});
    if (!folder.faults.empty())
      fail_folder("broken checkpoint " + path.string() + ": " + folder.faults[0]);
    return folder;
  };
  if (fs::exists(name / io::kManifestName)) return checked(name);

  const std::string leaf = name.filename().string();
  fs::path run = name;
  if (!fs::exists(name) && (leaf == "best" || leaf == "last")) run = name.parent_path();
  if (run.empty()) run = ".";
  if (!fs::exists(run)) fail_folder("no such checkpoint or run folder: " + name.string());
  if (parse_folder_name(leaf)) {
    fail_folder("broken checkpoint " + name.string() + ": manifest.json is missing");
  }
  if (run != name && leaf == "best") {
    const auto best = read_best(run);
    if (!best)
      fail_folder(run.string() + " has no best checkpoint (no held-out loss was measured)");
    return checked(run / folder_name({best->step, 0}));
  }
  if (auto last = last_checkpoint(run, on_broken)) return *last;
  fail_folder("no sound checkpoint in " + run.string() +
              " (expected step-* folders with a manifest.json, as `kda train` writes them)");
}

std::int64_t commit_checkpoint(
    const fs::path& run, const RunPoint& point, const io::Json& info,
    const std::function<std::vector<std::string>(const fs::path&)>& fill) {
  const std::string name = folder_name(point);
  const fs::path temporary =
      run / (std::string(kTemporaryPrefix) + name + "-" + std::to_string(::getpid()));
  std::int64_t bytes = 0;
  try {
    fs::remove_all(temporary);
    if (!fs::create_directory(temporary)) fail_folder("cannot create " + temporary.string());
    const std::vector<std::string> files = fill(temporary);
    const io::Manifest manifest = io::write_manifest(temporary, kCheckpointKind, files, info);
    for (const io::ManifestEntry& entry : manifest.files) {
      bytes += static_cast<std::int64_t>(entry.bytes);
    }
    io::sync_folder(temporary);
    publish(temporary, run / name);
    io::sync_folder(run);
  } catch (const fs::filesystem_error& error) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    fail_folder("cannot write checkpoint " + (run / name).string() + ": " + error.code().message());
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
  return bytes;
}

std::vector<std::string> prune_checkpoints(const fs::path& run, const RunPoint& newest,
                                           std::int64_t keep_last,
                                           std::optional<std::int64_t> best_step) {
  std::vector<std::string> removed;
  std::int64_t kept = 0;
  for (const CheckpointFolder& folder : list_checkpoints(run, false)) {
    if (folder.point > newest) continue;
    const bool is_best = best_step && folder.point == RunPoint{*best_step, 0};
    if (kept < keep_last) {
      ++kept;
      continue;
    }
    if (is_best) continue;
    // Under a leftover's name first: a half-removed folder must not look like a broken checkpoint.
    const fs::path aside =
        run / (std::string(kTemporaryPrefix) + "remove-" + folder.path.filename().string());
    std::error_code status;
    fs::rename(folder.path, aside, status);
    if (!status) fs::remove_all(aside, status);
    if (status) fail_folder("cannot remove " + folder.path.string() + ": " + status.message());
    removed.push_back(folder.path.filename().string());
  }
  return removed;
}

void remove_leftovers(const fs::path& run) {
  std::vector<fs::path> leftovers;
  std::error_code status;
  for (const auto& entry : fs::directory_iterator(run, status)) {
    if (entry.path().filename().string().starts_with(kTemporaryPrefix)) {
      leftovers.push_back(entry.path());
    }
  }
  for (const fs::path& path : leftovers)
    fs::remove_all(path, status);
  if (fs::is_directory(run)) io::remove_temporary_files(run);
}

RunLock::RunLock(const fs::path& run) {
  const fs::path path = run / ".lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) io::throw_errno("cannot open", path);
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    char owner[32] = {};
    const ssize_t n = ::pread(fd_, owner, sizeof owner - 1, 0);
    ::close(fd_);
    fail_folder(run.string() + " is in use by another trainer" +
                (n > 0 ? " (process " + std::string(owner) + ")" : std::string()));
  }
  const std::string self = std::to_string(::getpid());
  if (::ftruncate(fd_, 0) != 0 ||
      ::pwrite(fd_, self.data(), self.size(), 0) != static_cast<ssize_t>(self.size())) {
    // The number is only a courtesy; the lock holds without it.
  }
}

RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace kda::train
