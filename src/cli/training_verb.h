/// What `kda train` and `kda sft` have in common: one flag per field of the option table, resuming,
/// configuration files, the summary at the end.
#pragma once

#include "cli/app.h"
#include "train/options.h"

namespace kda::cli {

/// Adds the flags of the defaults' verb and what running it does.
void add_training_verb(CLI::App* verb, const train::TrainOptions& defaults);

}  // namespace kda::cli
