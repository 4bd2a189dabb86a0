#include "io/svg_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>

#include "io/escape.h"
#include "io/plot_axis.h"
#include "io/utf8.h"
#include "kda/error.h"

namespace kda::io {
namespace {

// Colours that stay apart for colour-blind readers (Okabe and Ito), darkened for lines on white.
constexpr std::array kColours = {"#0067a5", "#d1510a", "#1a8f63", "#b5529b",
                                 "#9a7d00", "#3fa0d6", "#5c4b99", "#4d4d4d"};
constexpr const char* kInk = "#1f2933";
constexpr const char* kSoftInk = "#5f6b76";
constexpr const char* kGrid = "#e3e7eb";
constexpr const char* kFaintGrid = "#f2f4f6";

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f", value);
  std::string out = text.data();
  while (out.back() == '0')
    out.pop_back();
  if (out.back() == '.') out.pop_back();
  return out == "-0" ? "0" : out;
}

/// Text content or attribute value; characters that XML forbids are left out.
std::string xml(std::string_view text) {
  std::string out;
  for (const char c : replace_invalid_utf8(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
  }
  return out;
}

/// Rough width of sans-serif text; wide (CJK) characters count as one em.
double text_width(std::string_view text, double font_size) {
  double ems = 0;
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    ems += step.code_point >= 0x2E80 ? 1.0 : 0.56;
    text.remove_prefix(step.length);
  }
  return ems * font_size;
}

class SvgText {
 public:
  void line(double x1, double y1, double x2, double y2, const char* colour, double width) {
    out += "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) +
           "\" y2=\"" + number(y2) + "\" stroke=\"" + colour + "\" stroke-width=\"" +
           number(width) + "\"/>\n";
  }
  void text(double x, double y, std::string_view content, double size, const char* colour,
            const char* anchor = "start", const char* extra = "") {
    if (content.empty()) return;
    out += "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" font-size=\"" + number(size) +
           "\" fill=\"" + colour + "\" text-anchor=\"" + anchor + "\"" + extra + ">" +
           xml(content) + "</text>\n";
  }
  std::string out;
};

struct Point {
  double x;
  double y;
};

/// Consecutive visible points in pixels; a value that cannot be shown ends a run.
std::vector<std::vector<Point>> pixel_runs(const PlotSeries& series, const Plot& plot,
                                           const PlotAxis& x_axis, const PlotAxis& y_axis) {
  std::vector<std::vector<Point>> runs;
  bool open = false;
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    if (!PlotAxis::shows(plot.x_scale, series.x[i]) ||
        !PlotAxis::shows(plot.y_scale, series.y[i])) {
      open = false;
      continue;
    }
    if (!open) runs.emplace_back();
    open = true;
    runs.back().push_back({x_axis.to_pixel(series.x[i]), y_axis.to_pixel(series.y[i])});
  }
  return runs;
}

/// Of the points that share a pixel column: the first, the extremes and the last, in their order.
std::vector<Point> thinned(const std::vector<Point>& points) {
  std::vector<Point> out;
  std::size_t begin = 0;
  while (begin < points.size()) {
    std::size_t end = begin + 1;
    const double column = std::floor(points[begin].x);
    while (end < points.size() && std::floor(points[end].x) == column)
      ++end;
    if (end - begin <= 4) {
      out.insert(out.end(), points.begin() + static_cast<std::ptrdiff_t>(begin),
                 points.begin() + static_cast<std::ptrdiff_t>(end));
    } else {
      std::size_t low = begin;
      std::size_t high = begin;
      for (std::size_t i = begin; i < end; ++i) {
        if (points[i].y < points[low].y) low = i;
        if (points[i].y > points[high].y) high = i;
      }
      std::array<std::size_t, 4> keep = {begin, std::min(low, high), std::max(low, high), end - 1};
      for (std::size_t i = 0; i < keep.size(); ++i) {
        if (i == 0 || keep[i] != keep[i - 1]) out.push_back(points[keep[i]]);
      }
    }
    begin = end;
  }
  return out;
}

void draw_series(SvgText& svg, const PlotSeries& series, const char* colour,
                 const std::vector<std::vector<Point>>& runs) {
  const std::string style =
      std::string(" fill=\"none\" stroke=\"") + colour +
      "\" stroke-linejoin=\"round\" stroke-linecap=\"round\"" +
      (series.faint ? " stroke-width=\"1\" stroke-opacity=\"0.35\"" : " stroke-width=\"2\"");
  for (const auto& run : runs) {
    const auto points = thinned(run);
    if (points.size() > 1) {
      svg.out += "<path d=\"M";
      for (const auto& p : points)
        svg.out += " " + number(p.x) + "," + number(p.y);
      svg.out += '"';
      svg.out += style;
      svg.out += "/>\n";
    }
    // A lone point has no line, so it needs a dot to be seen.
    if (!series.markers && run.size() > 1) continue;
    for (const auto& p : points) {
      svg.out += "<circle cx=\"" + number(p.x) + "\" cy=\"" + number(p.y) + "\" r=\"3.2\" fill=\"" +
                 std::string(colour) + "\" stroke=\"#fff\" stroke-width=\"1\"/>\n";
    }
  }
}

/// Colour of each series. A faint one shares that of the series after it, which it stands behind.
std::vector<const char*> colours_of(const std::vector<PlotSeries>& series) {
  std::vector<const char*> colours;
  std::size_t next = 0;
  for (std::size_t i = 0; i < series.size(); ++i) {
    colours.push_back(kColours[next % kColours.size()]);
    if (!series[i].faint) ++next;
  }
  return colours;
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double v) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
};

struct LegendItem {
  std::size_t series;
  double x;
  double y;
};

/// Places the legend's items in rows under the titles; returns them and the height used.
std::pair<std::vector<LegendItem>, double> lay_out_legend(const Plot& plot, double left,
                                                          double right, double top) {
  std::vector<LegendItem> items;
  double x = left;
  double y = top;
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    if (plot.series[i].label.empty()) continue;
    const double width = 30 + text_width(plot.series[i].label, 12.5) + 20;
    if (x > left && x + width > right) {
      x = left;
      y += 20;
    }
    items.push_back({i, x, y});
    x += width;
  }
  return {items, items.empty() ? 0 : y + 20 - top};
}

void check(const Plot& plot, Range& x_range, Range& y_range) {
  const auto refuse = [](const std::string& text) {
    throw Error(ErrorCode::kInvalidArgument, "plot: " + text);
  };
  if (plot.width < 320 || plot.width > 4096 || plot.height < 240 || plot.height > 4096) {
    refuse("expected a size from 320x240 to 4096x4096, got " + std::to_string(plot.width) + "x" +
           std::to_string(plot.height));
  }
  for (const auto& series : plot.series) {
    if (series.x.size() != series.y.size()) {
      refuse("series " + escaped(series.label) + ": " + std::to_string(series.x.size()) +
             " x values, " + std::to_string(series.y.size()) + " y values");
    }
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      if (PlotAxis::shows(plot.x_scale, series.x[i]) &&
          PlotAxis::shows(plot.y_scale, series.y[i])) {
        x_range.add(series.x[i]);
        y_range.add(series.y[i]);
      }
    }
  }
  if (!(x_range.low <= x_range.high)) refuse("no series has a point that can be shown");
}

}  // namespace

std::vector<double> smoothed(const std::vector<double>& values, double decay) {
  if (!(decay >= 0 && decay < 1)) {
    throw Error(ErrorCode::kInvalidArgument,
                "smoothed: expected a decay in [0, 1), got " + std::to_string(decay));
  }
  std::vector<double> out;
  out.reserve(values.size());
  double mean = 0;
  double weight = 0;  // 1 - decay^t
  for (const double v : values) {
    if (!std::isfinite(v)) {
      out.push_back(v);
      continue;
    }
    mean = decay * mean + (1 - decay) * v;
    weight = decay * weight + (1 - decay);
    out.push_back(mean / weight);
  }
  return out;
}

std::string render_svg(const Plot& plot) {
  Range x_range;
  Range y_range;
  check(plot, x_range, y_range);

  const double left = 76;
  const double right = plot.width - 28;
  double top = 24;
  if (!plot.title.empty()) top += 20;
  if (!plot.subtitle.empty()) top += 20;
  const auto [legend, legend_height] = lay_out_legend(plot, left, right, top + 4);
  const double plot_top = top + legend_height + 8;
  const double plot_bottom = plot.height - (plot.x_label.empty() ? 36.0 : 58.0);

  const PlotAxis x_axis(plot.x_scale, x_range.low, x_range.high, 0.0, left, right,
                        std::max(3, static_cast<int>((right - left) / 110)));
  const PlotAxis y_axis(plot.y_scale, y_range.low, y_range.high, 0.05, plot_bottom, plot_top,
                        std::max(3, static_cast<int>((plot_bottom - plot_top) / 50)));

  const auto colours = colours_of(plot.series);
  SvgText svg;
  const std::string w = std::to_string(plot.width);
  const std::string h = std::to_string(plot.height);
  svg.out = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + w + "\" height=\"" + h +
            "\" viewBox=\"0 0 " + w + " " + h +
            "\" font-family=\"Inter, 'Helvetica Neue', Arial, 'DejaVu Sans', 'Noto Sans CJK SC', "
            "sans-serif\">\n<title>" +
            xml(plot.title) + "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";

  double y = 32;
  if (!plot.title.empty()) {
    svg.text(left, y, plot.title, 18, kInk, "start", " font-weight=\"600\"");
    y += 20;
  }
  svg.text(left, y, plot.subtitle, 12.5, kSoftInk);
  for (const auto& item : legend) {
    const auto& series = plot.series[item.series];
    const char* colour = colours[item.series];
    svg.line(item.x, item.y + 8, item.x + 22, item.y + 8, colour, series.faint ? 0.7 : 2.6);
    if (series.markers) {
      svg.out += "<circle cx=\"" + number(item.x + 11) + "\" cy=\"" + number(item.y + 8) +
                 "\" r=\"3.2\" fill=\"" + std::string(colour) + "\"/>\n";
    }
    svg.text(item.x + 30, item.y + 12, series.label, 12.5, kInk);
  }

  for (const double v : x_axis.minor_ticks()) {
    svg.line(x_axis.to_pixel(v), plot_top, x_axis.to_pixel(v), plot_bottom, kFaintGrid, 1);
  }
  for (const double v : y_axis.minor_ticks()) {
    svg.line(left, y_axis.to_pixel(v), right, y_axis.to_pixel(v), kFaintGrid, 1);
  }
  for (const auto& tick : x_axis.ticks()) {
    const double x = x_axis.to_pixel(tick.value);
    svg.line(x, plot_top, x, plot_bottom, kGrid, 1);
    svg.text(x, plot_bottom + 18, tick.label, 12, kSoftInk, "middle");
  }
  for (const auto& tick : y_axis.ticks()) {
    const double at = y_axis.to_pixel(tick.value);
    svg.line(left, at, right, at, kGrid, 1);
    svg.text(left - 8, at + 4, tick.label, 12, kSoftInk, "end");
  }
  svg.line(left, plot_bottom, right, plot_bottom, kSoftInk, 1.2);
  svg.text((left + right) / 2, plot.height - 16.0, plot.x_label, 13, kInk, "middle");
  const double middle = (plot_top + plot_bottom) / 2;
  const std::string turn = " transform=\"rotate(-90 20 " + number(middle) + ")\"";
  svg.text(20, middle, plot.y_label, 13, kInk, "middle", turn.c_str());

  // Faint series first, so that they stay behind the others.
  for (const bool faint : {true, false}) {
    for (std::size_t i = 0; i < plot.series.size(); ++i) {
      if (plot.series[i].faint != faint) continue;
      draw_series(svg, plot.series[i], colours[i],
                  pixel_runs(plot.series[i], plot, x_axis, y_axis));
    }
  }
  svg.out += "</svg>\n";
  return svg.out;
}

}  // namespace kda::io
