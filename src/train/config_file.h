/// Options from and to files that people write: TOML, or the JSON of a run's config.json.
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "train/options.h"

namespace kda::train {

/// Reads `path` over the defaults of `task`. A name ending in .json is the config.json of a run (or
/// its "train" part), anything else TOML: one `key = value` per field, flat or under a table with
/// the verb's name ([train], [sft]); counts and periods may be numbers or strings with units
/// ("8.2M", "500u"). Strict: unknown keys (with the nearest known one), wrong types and malformed
/// text throw kInvalidArgument naming file and key or line; a file that cannot be read is kIo.
struct OptionsFile {
  TrainOptions options;
  std::set<std::string> keys;  ///< of the fields that the file has
};
OptionsFile read_options_file(const std::filesystem::path& path, Task task);

/// TOML of all fields of the task's verb under the headings of --help; `read_options_file` reads it
/// back to equal options.
std::string options_to_toml(const TrainOptions& options);

}  // namespace kda::train
