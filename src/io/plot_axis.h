/// One axis of a plot: range, ticks and the way from values to pixels. Private to svg_plot.
#pragma once

#include <string>
#include <vector>

#include "io/svg_plot.h"

namespace kda::io {

class PlotAxis {
 public:
  /// Takes the smallest and largest value to show; `padding` widens both ends by that share.
  PlotAxis(AxisScale scale, double low, double high, double padding, double pixel_low,
           double pixel_high, int target_ticks);

  /// False for values that have no place on the axis: not finite, or <= 0 on a logarithmic one.
  static bool shows(AxisScale scale, double value);
  double to_pixel(double value) const;

  struct Tick {
    double value;
    std::string label;
  };
  const std::vector<Tick>& ticks() const { return ticks_; }
  /// Unlabelled grid positions between decades; empty on linear axes.
  const std::vector<double>& minor_ticks() const { return minor_; }

 private:
  void make_ticks(double low, double high, int target);

  AxisScale scale_;
  double low_;  ///< in log10 on a logarithmic axis, as high_
  double high_;
  double pixel_low_;
  double pixel_high_;
  std::vector<Tick> ticks_;
  std::vector<double> minor_;
};

/// "12k", "3.5M", "0.05", "1e-5"; `step` is the distance of ticks and sets the decimals.
std::string tick_label(double value, double step);

}  // namespace kda::io
