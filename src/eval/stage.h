/// What a checkpoint says about how it was trained.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace kda::eval {

/// How a model came to be; decides what its translation scores can mean.
enum class Stage : std::uint8_t {
  kUnknown,     ///< the folder does not say
  kPretrained,  ///< has never seen a translation prompt
  kFineTuned,   ///< by `kda sft`
};
const char* name_of(Stage stage);  ///< "unknown", "pretrained", "fine-tuned"

struct CheckpointStage {
  Stage stage = Stage::kUnknown;
  std::optional<std::int64_t> step;
  std::int64_t prompt_version = 0;  ///< of the template it was fine-tuned with; 0: not recorded
};

/// Reads the folder's trainer.json; kUnknown for a folder without one (an imported model). Error
/// (kIo) for a file that is no JSON.
CheckpointStage stage_of(const std::filesystem::path& folder);

}  // namespace kda::eval
