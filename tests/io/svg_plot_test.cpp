#include "io/svg_plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "io/io_test_support.h"
#include "io/plot_axis.h"

namespace kda::io {
namespace {

using test::expect_error;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++n;
  return n;
}

bool has(const std::string& text, const std::string& part) { return count(text, part) > 0; }

Plot simple() {
  Plot plot;
  plot.title = "loss <a> & \"b\"";
  plot.x_label = "step";
  plot.y_label = "nats";
  plot.series = {{"train", {0, 1, 2, 3}, {4, 3, 2, 1}}, {"eval", {0, 3}, {3.5, 1.5}, true}};
  return plot;
}

TEST(SvgPlot_Document, HasItsPartsAndIsEscaped) {
  const std::string svg = render_svg(simple());
  EXPECT_TRUE(svg.starts_with("<svg xmlns="));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_TRUE(has(svg, "loss &lt;a&gt; &amp; &quot;b&quot;"));
  EXPECT_FALSE(has(svg, "<a>"));
  EXPECT_TRUE(has(svg, ">step<"));
  EXPECT_TRUE(has(svg, ">nats<"));
  EXPECT_TRUE(has(svg, ">train<"));
  EXPECT_EQ(count(svg, "<path"), 2u);
  EXPECT_EQ(count(svg, "<circle"), 3u);  // two markers and one in the legend
  EXPECT_EQ(render_svg(simple()), svg);
}

TEST(SvgPlot_ControlCharacters, AreLeftOut) {
  Plot plot = simple();
  plot.title = std::string("a\x01\x1b\xFF") + "b";
  const std::string svg = render_svg(plot);
  EXPECT_FALSE(has(svg, "\x01"));
  EXPECT_FALSE(has(svg, "\xFF"));
  EXPECT_TRUE(has(svg,
                  "\xEF\xBF\xBD"
                  "b"));
}

TEST(SvgPlot_NonFinite, BreaksTheLine) {
  Plot plot = simple();
  const double nan = std::nan("");
  const double inf = std::numeric_limits<double>::infinity();
  plot.series = {{"", {0, 1, 2, 3, 4, 5, 6}, {1, 2, nan, 2, 1, inf, 3}}};
  const std::string svg = render_svg(plot);
  EXPECT_EQ(count(svg, "<path"), 2u);
  EXPECT_EQ(count(svg, "<circle"), 1u);  // the lone last point
  EXPECT_FALSE(has(svg, "nan"));
  EXPECT_FALSE(has(svg, "inf"));
}

TEST(SvgPlot_LogAxis, DropsWhatHasNoLogarithm) {
  Plot plot = simple();
  plot.y_scale = AxisScale::kLog10;
  plot.x_scale = AxisScale::kLog10;
  plot.series = {{"lr", {1, 10, 100, 1000}, {1e-5, 0, 1e-3, 1e-2}}};
  const std::string svg = render_svg(plot);
  EXPECT_TRUE(has(svg, ">0.001<"));
  EXPECT_TRUE(has(svg, ">1e-5<"));
  EXPECT_TRUE(has(svg, ">100<"));
}

TEST(SvgPlot_Extremes, SurviveThinning) {
  Plot plot;
  plot.width = 400;
  plot.height = 300;
  PlotSeries s{"s", {}, {}};
  for (int i = 0; i < 200'000; ++i) {
    s.x.push_back(i);
    s.y.push_back(i == 77'777 ? 100.0 : std::sin(i * 0.01));
  }
  plot.series = {s};
  const std::string svg = render_svg(plot);
  EXPECT_LT(svg.size(), 40'000u);
  // The spike reaches the top of the plot area: its pixel is the smallest y of the path.
  const auto path = svg.substr(svg.find("<path"));
  double top = 1e9;
  for (auto at = path.find(','); at != std::string::npos && at < path.find('"', 9);
       at = path.find(',', at + 1)) {
    top = std::min(top, std::stod(path.substr(at + 1)));
  }
  EXPECT_LT(top, 75);
}

TEST(SvgPlot_OnePoint, IsVisible) {
  Plot plot;
  plot.series = {{"one", {5}, {7}}};
  const std::string svg = render_svg(plot);
  EXPECT_EQ(count(svg, "<circle"), 1u);
  plot.y_scale = AxisScale::kLog10;
  EXPECT_EQ(count(render_svg(plot), "<circle"), 1u);
  plot.series = {{"zero", {0}, {0}}};
  plot.y_scale = AxisScale::kLinear;
  EXPECT_EQ(count(render_svg(plot), "<circle"), 1u);
}

TEST(SvgPlot_Legend, WrapsWhenItIsWide) {
  Plot plot = simple();
  plot.series.clear();
  for (int i = 0; i < 12; ++i) {
    plot.series.push_back({"a rather long label 中文 " + std::to_string(i), {0, 1}, {0, 1.0 * i}});
  }
  const std::string svg = render_svg(plot);
  EXPECT_EQ(count(svg, "a rather long label"), 12u);
}

TEST(SvgPlot_Refuses, WhatItCannotShow) {
  Plot plot = simple();
  plot.series[0].y.pop_back();
  expect_error(ErrorCode::kInvalidArgument, {"\"train\"", "4 x values, 3 y values"},
               [&] { render_svg(plot); });
  plot.series.clear();
  expect_error(ErrorCode::kInvalidArgument, {"no series has a point"}, [&] { render_svg(plot); });
  plot.series = {{"n", {0}, {std::nan("")}}};
  expect_error(ErrorCode::kInvalidArgument, {"no series has a point"}, [&] { render_svg(plot); });
  plot.width = 100;
  expect_error(ErrorCode::kInvalidArgument, {"100x560"}, [&] { render_svg(plot); });
}

TEST(Smoothed_BiasCorrection, FirstValueIsItself) {
  const auto s = smoothed({4, 2, std::nan(""), 2}, 0.5);
  EXPECT_DOUBLE_EQ(s[0], 4);
  EXPECT_DOUBLE_EQ(s[1], (0.25 * 4 + 0.5 * 2) / 0.75);
  EXPECT_TRUE(std::isnan(s[2]));
  EXPECT_DOUBLE_EQ(s[3], (0.125 * 4 + 0.25 * 2 + 0.5 * 2) / 0.875);
  EXPECT_EQ(smoothed({1, 5}, 0), (std::vector<double>{1, 5}));
  expect_error(ErrorCode::kInvalidArgument, {"[0, 1)"}, [] { smoothed({1}, 1.0); });
}

TEST(NiceTicks_Values, AreRoundAndInside) {
  EXPECT_EQ(nice_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(nice_ticks(0, 800, 4), (std::vector<double>{0, 200, 400, 600, 800}));
  EXPECT_EQ(nice_ticks(3, 3, 5), std::vector<double>{3});
  for (const double high : {0.3, 7.1, 9.2e-7, 1e12}) {
    const auto ticks = nice_ticks(0.1 * high, high, 6);
    EXPECT_GE(ticks.size(), 3u);
    EXPECT_LE(ticks.size(), 8u);
    EXPECT_GE(ticks.front(), 0.1 * high * (1 - 1e-6));
    EXPECT_LE(ticks.back(), high * (1 + 1e-6));
  }
}

TEST(TickLabel_Text, IsShort) {
  EXPECT_EQ(tick_label(0, 1), "0");
  EXPECT_EQ(tick_label(3, 1), "3");
  EXPECT_EQ(tick_label(3, 0.25), "3.00");
  EXPECT_EQ(tick_label(-0.5, 0.5), "-0.5");
  EXPECT_EQ(tick_label(2000, 500), "2000");
  EXPECT_EQ(tick_label(20000, 5000), "20k");
  EXPECT_EQ(tick_label(3.5e6, 5e5), "3.5M");
  EXPECT_EQ(tick_label(2e9, 1e9), "2G");
  EXPECT_EQ(tick_label(3e12, 1e12), "3T");
  EXPECT_EQ(tick_label(1e-5, 1e-5), "1e-5");
  EXPECT_EQ(tick_label(2e20, 1e20), "2e20");
  EXPECT_EQ(tick_label(0.0003, 0.0001), "0.0003");
}

}  // namespace
}  // namespace kda::io
