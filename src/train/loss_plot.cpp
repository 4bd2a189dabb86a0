#include "train/loss_plot.h"

#include <string>
#include <utility>

#include "io/atomic_file.h"
#include "io/jsonl_log.h"
#include "io/svg_plot.h"

namespace kda::train {
namespace {

/// NaN and infinity are strings in the log: such points are left out of the plot.
bool read_point(const io::Json& record, const char* key, io::PlotSeries& series) {
  const auto step = record.find("step");
  const auto value = record.find(key);
  if (step == record.end() || !step->is_number() || value == record.end() || !value->is_number()) {
    return false;
  }
  series.x.push_back(step->get<double>());
  series.y.push_back(value->get<double>());
  return true;
}

}  // namespace

void write_loss_plot(const std::filesystem::path& run) {
  constexpr double kSmoothing = 0.95;
  io::PlotSeries raw;
  raw.label = "training loss";
  raw.faint = true;
  io::PlotSeries heldout;
  heldout.label = "held-out loss";
  heldout.markers = true;
  double bits_per_byte = 0;
  for (const io::Json& record : io::read_jsonl(run / "metrics.jsonl")) {
    if (record.value("kind", "") == "step") read_point(record, "loss", raw);
    if (record.value("kind", "") == "eval" && read_point(record, "heldout_loss", heldout)) {
      bits_per_byte = record.value("bits_per_byte", 0.0);
    }
  }
  if (raw.x.empty()) return;
  io::PlotSeries smooth;
  smooth.label = "smoothed";
  smooth.x = raw.x;
  smooth.y = io::smoothed(raw.y, kSmoothing);

  io::Plot plot;
  plot.title = "Loss: " + run.filename().string();
  char text[96];
  std::snprintf(text, sizeof text, "step %.0f: %.3f", smooth.x.back(), smooth.y.back());
  plot.subtitle = text;
  if (!heldout.y.empty()) {
    std::snprintf(text, sizeof text, ", held-out %.3f", heldout.y.back());
    plot.subtitle += text;
    if (bits_per_byte > 0) {
      std::snprintf(text, sizeof text, " (%.3f bits per byte)", bits_per_byte);
      plot.subtitle += text;
    }
  }
  plot.x_label = "optimizer step";
  plot.y_label = "cross entropy, nats per token";
  plot.series.push_back(std::move(raw));
  plot.series.push_back(std::move(smooth));
  if (!heldout.x.empty()) plot.series.push_back(std::move(heldout));
  io::write_file_atomic(run / "loss.svg", io::render_svg(plot));
}

}  // namespace kda::train
