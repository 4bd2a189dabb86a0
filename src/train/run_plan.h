/// Everything that is settled before the first step: which run is continued, tokenizer, data, model
/// shape, schedule; and the lines that tell the user about it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "model/config.h"
#include "text/packing.h"
#include "text/tokenizer.h"
#include "train/checkpoint.h"
#include "train/device.h"
#include "train/option_effects.h"
#include "train/options.h"
#include "train/report.h"
#include "train/run_folder.h"
#include "train/schedule.h"
#include "train/training_data.h"
#include "train/translation_probe.h"
#include "train/units.h"

namespace kda::train {

enum class ResumeMode : std::uint8_t {
  kNo,         ///< start; refuse a folder that holds checkpoints
  kYes,        ///< continue; refuse a folder that holds none
  kIfPresent,  ///< continue when there is something to continue, else start
};

struct TrainRequest {
  TrainOptions options;
  std::set<std::string> given_keys;  ///< fields that the user named; the others are defaults
  std::set<std::string> file_keys;   ///< fields of a --config file
  ResumeMode resume = ResumeMode::kNo;
  bool overwrite = false;  ///< with kNo: replace the run that the folder holds
};

struct RunPlan {
  TrainOptions options;  ///< effective: every default is resolved to a number
  std::filesystem::path run;
  std::unique_ptr<RunLock> lock;  ///< the folder is ours from here on
  std::optional<CheckpointFolder> resumed_from;
  std::optional<TrainerFile> resumed;
  std::optional<text::Tokenizer> tokenizer;  ///< always set
  TrainingData data;
  std::vector<TranslationSet> translations;  ///< made at every evaluation; may be empty
  model::KDAConfig model;
  DeviceChoice device;
  Schedule schedule;
  std::string recompute_note;  ///< what memory decided about recomputation; "": nobody asked it
  std::int64_t total_steps = 0;
  std::int64_t tokens_per_step = 0;  ///< fine-tuning: on average, since batches are not full

  Position position(std::int64_t step, std::int64_t tokens) const;
};

/// Processes that train together, as launchers say it (WORLD_SIZE); 1 when nobody says.
std::int64_t world_size_of_environment();

/// Reads, checks and tokenizes; creates and locks the run folder and removes what killed processes
/// left in it.
RunPlan make_plan(const TrainRequest& request, Reporter& reporter);

/// Removes what an earlier run left in the folder: checkpoints, metrics, plot, best. Other files
/// stay.
void clear_run(const std::filesystem::path& run);

/// Options that do nothing in this run; the preset is "" where the model comes from elsewhere.
WithoutEffect idle_options(const RunPlan& plan);

/// RUN/config.json: the options that take effect, model, data, derived numbers.
void write_run_config(const RunPlan& plan);

/// Tells the configuration, parameter counts, memory and disk estimates; warns when they exceed
/// what the machine has.
void report_plan(const RunPlan& plan, Reporter& reporter);

/// The first sequences of a batch as text, so that a wrong tokenizer or a wrong file shows before
/// hours are spent.
std::string preview(const text::PackedBatch& batch, const text::Tokenizer& tokenizer);

}  // namespace kda::train
