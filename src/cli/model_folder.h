/// From what a user calls a model to the folder with its config and weights.
#pragma once

#include <filesystem>
#include <string>

namespace kda::cli {

/// A folder with config.json and model.safetensors, or the index of several files, is taken as it
/// is: a downloaded checkpoint, or one that `kda ckpt convert` wrote. Everything else is a
/// checkpoint or run folder (train::resolve_checkpoint), whose hashes are verified; broken newer
/// checkpoints are warned about in the name of `verb`. Throws kIo.
std::filesystem::path find_model_folder(const std::string& name, const std::string& verb);

}  // namespace kda::cli
