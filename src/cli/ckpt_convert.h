/// `kda ckpt convert` and `kda ckpt logits`: checkpoints and other programs.
#pragma once

#include <CLI/CLI.hpp>

namespace kda::cli {

void add_ckpt_convert(CLI::App& ckpt);
void add_ckpt_logits(CLI::App& ckpt);

}  // namespace kda::cli
