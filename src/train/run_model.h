/// Which model a new run trains: of a preset, a configuration file or a checkpoint, with the
/// changes that were asked for.
#pragma once

#include <set>
#include <string>

#include "model/config.h"
#include "text/tokenizer.h"
#include "train/options.h"
#include "train/run_folder.h"

namespace kda::train {

/// The checkpoint that a run takes its weights from (`--init-from`, of `kda sft` also `--ckpt`).
CheckpointFolder starting_point(const TrainOptions& options);

/// Whether the model has the shape of a preset; a checkpoint to start from brings its own. `given`
/// are the fields that the user named.
bool takes_preset(const TrainOptions& options, const std::set<std::string>& given);

/// Its configuration. Throws kInvalidArgument naming the flag, also when the tokenizer needs a
/// larger vocabulary.
model::KDAConfig model_of(const TrainOptions& options, const std::set<std::string>& given,
                          const text::TokenizerInfo& tokenizer);

}  // namespace kda::train
