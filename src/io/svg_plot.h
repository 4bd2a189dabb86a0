/// Line plots as standalone SVG files: loss curves without Python.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kda::io {

enum class AxisScale : std::uint8_t { kLinear, kLog10 };

struct PlotSeries {
  std::string label;
  std::vector<double> x;  ///< same length as y
  std::vector<double> y;  ///< NaN and infinities break the line
  bool markers = false;   ///< dots on the points, for sparse series such as evaluations
  bool faint = false;     ///< thin, pale, in the colour of the next series: raw values
};

struct Plot {
  std::string title;
  std::string subtitle;
  std::string x_label;
  std::string y_label;
  AxisScale x_scale = AxisScale::kLinear;
  AxisScale y_scale = AxisScale::kLinear;  ///< values <= 0 break a line on a logarithmic axis
  std::vector<PlotSeries> series;
  int width = 960;   ///< pixels, 320 to 4096
  int height = 560;  ///< pixels, 240 to 4096
};

/// The SVG document. Error(kInvalidArgument) when x and y differ in length or no finite point
/// exists. Long series are thinned to the extremes of each pixel column, so spikes stay visible.
std::string render_svg(const Plot& plot);

/// Exponential moving average with bias correction: m_t = d·m + (1 − d)·y, out = m_t / (1 − d^t).
/// Non-finite values are copied and do not enter the average. `decay` in [0, 1).
std::vector<double> smoothed(const std::vector<double>& values, double decay);

/// Round tick values that cover [low, high], about `target` of them.
std::vector<double> nice_ticks(double low, double high, int target);

}  // namespace kda::io
