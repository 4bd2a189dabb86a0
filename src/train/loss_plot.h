/// The loss curve of a run as an SVG file, from its metrics log.
#pragma once

#include <filesystem>

namespace kda::train {

/// Draws training loss (raw and smoothed) and held-out loss over optimizer steps into
/// RUN/loss.svg. Does nothing before the first step. Throws kIo.
void write_loss_plot(const std::filesystem::path& run);

}  // namespace kda::train
