#include "cli/model_folder.h"

#include "cli/console.h"
#include "io/manifest.h"
#include "train/run_folder.h"

namespace kda::cli {
namespace fs = std::filesystem;

fs::path find_model_folder(const std::string& name, const std::string& verb) {
  const fs::path path = name;
  const bool has_weights =
      fs::exists(path / "model.safetensors") || fs::exists(path / "model.safetensors.index.json");
  if (has_weights && fs::exists(path / "config.json") && !fs::exists(path / io::kManifestName)) {
    return path;
  }
  return train::resolve_checkpoint(
             path,
             [&](const train::CheckpointFolder& broken) {
               print_warning(verb, "checkpoint " + broken.path.string() +
                                       " is broken and left out: " + broken.faults.front());
             })
      .path;
}

}  // namespace kda::cli
