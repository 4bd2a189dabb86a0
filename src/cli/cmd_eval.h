/// The subverbs of `kda eval` that have a file of their own.
#pragma once

#include <CLI/CLI.hpp>

namespace kda::cli {

void add_eval_mt(CLI::App& eval);

}  // namespace kda::cli
