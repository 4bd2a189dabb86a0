/// Options that would do nothing in the combination that they are given in.
///
/// An option that is read and then ignored is a wish that nobody answers: `--decay 50` with a
/// cosine schedule, `--qk-clip 30` with AdamW. What the user named on the command line is refused;
/// a value of a configuration file that differs from the default is warned of (`--dump-config`
/// writes every key). Asking for nothing (0, off) is never refused. A run's config.json leaves such
/// keys out.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "train/options.h"

namespace kda::train {

/// Key of an option -> why it does nothing.
using WithoutEffect = std::map<std::string, std::string>;

/// What the options say by themselves.
WithoutEffect without_effect(const TrainOptions& options);

/// What is known when the data are read and the model's shape is settled.
struct RunFacts {
  bool packed_data = false;       ///< `--data` is a folder of `kda data pack`
  bool has_heldout_file = false;  ///< the data bring their held-out part
  bool has_heldout = false;       ///< there are tokens to measure the loss on
  bool has_translations = false;  ///< there are sentences to translate at evaluations
  std::int64_t num_mla_layers = 0;
  std::int64_t total_steps = 0;
};
WithoutEffect without_effect(const TrainOptions& options, const RunFacts& facts);

/// Throws kInvalidArgument for the first of `idle` that is in `given`, naming the flag and the
/// reason. Returns a warning for each that is in `from_file` with a value other than the default.
std::vector<std::string> refuse_without_effect(const WithoutEffect& idle,
                                               const TrainOptions& options,
                                               const std::set<std::string>& given,
                                               const std::set<std::string>& from_file);

}  // namespace kda::train
