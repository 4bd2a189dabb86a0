#include "io/plot_axis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace kda::io {
namespace {

std::string format(const char* pattern, int digits, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), pattern, digits, value);
  return text.data();
}

/// "1e-05" -> "1e-5".
std::string short_exponent(std::string text) {
  if (const auto e = text.find('e'); e != std::string::npos) {
    auto digits = e + 2;
    while (digits + 1 < text.size() && text[digits] == '0')
      text.erase(digits, 1);
    if (text[e + 1] == '+') text.erase(e + 1, 1);
  }
  return text;
}

}  // namespace

std::vector<double> nice_ticks(double low, double high, int target) {
  if (!(high > low) || target < 1) return {low};
  const double rough = (high - low) / target;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  // Multiples of the step, not sums of it: sums drift.
  const double first = std::ceil(low / step - 1e-9);
  const double last = std::floor(high / step + 1e-9);
  for (double i = first; i <= last && ticks.size() < 1000; ++i)
    ticks.push_back(i * step);
  return ticks;
}

std::string tick_label(double value, double step) {
  const double size = std::max(std::abs(value), std::abs(step));
  if (value == 0) return "0";
  struct Unit {
    double factor;
    const char* suffix;
  };
  for (const Unit unit : {Unit{1e12, "T"}, Unit{1e9, "G"}, Unit{1e6, "M"}, Unit{1e3, "k"}}) {
    if (size >= 10 * unit.factor || (size >= unit.factor && unit.factor > 1e3)) {
      if (size >= 1e15) break;
      return format("%.*g", 6, value / unit.factor) + unit.suffix;
    }
  }
  if (size >= 1e15 || size < 1e-4) return short_exponent(format("%.*g", 3, value));
  int decimals = 0;
  for (double s = std::abs(step); decimals < 8 && std::abs(s - std::round(s)) > 1e-6 * s; s *= 10) {
    ++decimals;
  }
  return format("%.*f", decimals, value);
}

bool PlotAxis::shows(AxisScale scale, double value) {
  return std::isfinite(value) && (scale == AxisScale::kLinear || value > 0);
}

PlotAxis::PlotAxis(AxisScale scale, double low, double high, double padding, double pixel_low,
                   double pixel_high, int target_ticks)
    : scale_(scale), low_(low), high_(high), pixel_low_(pixel_low), pixel_high_(pixel_high) {
  if (scale_ == AxisScale::kLog10) {
    low_ = std::log10(low);
    high_ = std::log10(high);
  }
  double margin = (high_ - low_) * padding;
  if (!(high_ - low_ > 1e-12 * std::max(std::abs(low_), std::abs(high_)))) {
    // One value only: show it in the middle.
    margin = scale_ == AxisScale::kLog10 ? 0.5 : std::max(std::abs(low_) * 0.1, 1e-6);
  }
  low_ -= margin;
  high_ += margin;
  make_ticks(low_, high_, target_ticks);
}

double PlotAxis::to_pixel(double value) const {
  const double v = scale_ == AxisScale::kLog10 ? std::log10(value) : value;
  return pixel_low_ + (v - low_) / (high_ - low_) * (pixel_high_ - pixel_low_);
}

void PlotAxis::make_ticks(double low, double high, int target) {
  if (scale_ == AxisScale::kLinear || high - low < 1) {
    // Less than a decade: round values of the quantity itself read better than powers of ten.
    const bool log = scale_ == AxisScale::kLog10;
    const auto values = log ? nice_ticks(std::pow(10, low), std::pow(10, high), target)
                            : nice_ticks(low, high, target);
    const double step = values.size() > 1 ? values[1] - values[0] : values[0];
    for (const double v : values)
      ticks_.push_back({v, tick_label(v, step)});
    return;
  }
  const int first = static_cast<int>(std::ceil(low - 1e-9));
  const int last = static_cast<int>(std::floor(high + 1e-9));
  const int stride = std::max(1, (last - first + target) / target);
  const bool halves = last - first < 3;
  for (int decade = first - 1; decade <= last; ++decade) {
    for (int digit = 1; digit <= 9; ++digit) {
      const double value = digit * std::pow(10.0, decade);
      const double position = std::log10(value);
      if (position < low || position > high) continue;
      const bool labelled =
          digit == 1 ? (decade - first) % stride == 0 : halves && (digit == 2 || digit == 5);
      if (labelled) {
        ticks_.push_back({value, tick_label(value, value)});
      } else {
        minor_.push_back(value);
      }
    }
  }
}

}  // namespace kda::io
