/// The folder of a run: numbered checkpoints that are complete or absent, which one is last, which
/// one is best, and a lock against a second trainer.
///
///   RUN/config.json       effective configuration
///   RUN/metrics.jsonl     one record per step, evaluation, sample and save
///   RUN/loss.svg          loss curve
///   RUN/best.json         names the checkpoint with the lowest held-out loss
///   RUN/step-000800/      a checkpoint: model folder + optimizer + trainer state + manifest.json
///   RUN/step-000800-micro-3/   the same, taken inside an accumulation window
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"

namespace kda::train {

inline constexpr const char* kCheckpointKind = "checkpoint";

/// A point of a run at which it can be saved: after `step` optimizer steps and `micro`
/// micro-batches of the next one.
struct RunPoint {
  std::int64_t step = 0;
  std::int64_t micro = 0;
  auto operator<=>(const RunPoint&) const = default;
};

/// "step-000800", "step-000800-micro-3"; and back, nothing for other names.
std::string folder_name(const RunPoint& point);
std::optional<RunPoint> parse_folder_name(const std::string& name);

struct CheckpointFolder {
  std::filesystem::path path;
  RunPoint point;
  std::vector<std::string> faults;  ///< empty: complete, all hashes right
};

/// The checkpoints of a run, newest first; with `verify` each is compared with its manifest.
std::vector<CheckpointFolder> list_checkpoints(const std::filesystem::path& run, bool verify);

/// Compares one folder with its manifest; one sentence per fault.
std::vector<std::string> checkpoint_faults(const std::filesystem::path& folder);

/// The newest sound checkpoint; every newer broken one is told to `on_broken`. Nothing when there
/// is none.
std::optional<CheckpointFolder> last_checkpoint(
    const std::filesystem::path& run,
    const std::function<void(const CheckpointFolder&)>& on_broken);

struct BestCheckpoint {
  std::int64_t step = 0;
  double heldout_loss = 0;
  std::optional<double> success_rate;  ///< of translations, in fine-tuning
};
std::optional<BestCheckpoint> read_best(const std::filesystem::path& run);
void write_best(const std::filesystem::path& run, const BestCheckpoint& best);
void clear_best(const std::filesystem::path& run);

/// What a user calls a checkpoint: a checkpoint folder; a run folder (its last checkpoint);
/// RUN/last; RUN/best. Throws kIo saying what is there instead. Broken newer checkpoints are told
/// to `on_broken`.
CheckpointFolder resolve_checkpoint(
    const std::filesystem::path& name,
    const std::function<void(const CheckpointFolder&)>& on_broken = {});

/// Writes a checkpoint: `fill` puts files into a temporary folder and returns their names; then the
/// manifest, fsync, and one rename. Nothing is left behind when anything throws. Returns the bytes.
std::int64_t commit_checkpoint(
    const std::filesystem::path& run, const RunPoint& point, const io::Json& info,
    const std::function<std::vector<std::string>(const std::filesystem::path&)>& fill);

/// Removes all but the last `keep_last` checkpoints up to `newest` and the one of `best_step`.
/// Later ones are neither counted nor removed: a run that went back to an older checkpoint found
/// them broken, and they must not push out what it saves now. Returns the names removed.
std::vector<std::string> prune_checkpoints(const std::filesystem::path& run, const RunPoint& newest,
                                           std::int64_t keep_last,
                                           std::optional<std::int64_t> best_step);

/// Removes unfinished checkpoints of killed processes.
void remove_leftovers(const std::filesystem::path& run);

/// Holds RUN for this process: throws kIo with the other process's id when it is taken.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace kda::train
