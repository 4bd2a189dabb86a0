#include "eval/stage.h"

#include "io/json.h"

namespace kda::eval {

const char* name_of(Stage stage) {
  switch (stage) {
    case Stage::kUnknown:
      return "unknown";
    case Stage::kPretrained:
      return "pretrained";
    case Stage::kFineTuned:
      return "fine-tuned";
  }
  return "?";
}

CheckpointStage stage_of(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "trainer.json";
  if (!std::filesystem::exists(file)) return {};
  const io::Json json = io::read_json_file(file);
  if (!json.is_object()) return {};
  CheckpointStage result;
  result.stage = Stage::kPretrained;
  const auto version = json.find("prompt_version");
  if (version != json.end() && version->is_number_integer()) {
    result.prompt_version = version->get<std::int64_t>();
    if (result.prompt_version > 0) result.stage = Stage::kFineTuned;
  }
  // Runs from before there was fine-tuning have no "task".
  if (const auto options = json.find("options"); options != json.end() && options->is_object()) {
    if (options->value("task", io::Json("train")) == "sft") result.stage = Stage::kFineTuned;
  }
  if (const auto state = json.find("state"); state != json.end() && state->is_object()) {
    const auto step = state->find("step");
    if (step != state->end() && step->is_number_integer()) result.step = step->get<std::int64_t>();
  }
  return result;
}

}  // namespace kda::eval
