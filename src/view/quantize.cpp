#include "view/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "io/escape.h"
#include "kda/error.h"

namespace kda::view {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"clip", "minmax", "zscore", "none"};

template <class Real>
std::int8_t truncated(Real value) {
  if (std::isnan(value)) return 0;
  return static_cast<std::int8_t>(std::clamp(value, Real{-128}, Real{127}));
}

}  // namespace

std::string_view name_of(Normalization normalization) {
  return kNames[static_cast<std::size_t>(normalization)];
}

Normalization normalization_from(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<Normalization>(i);
  }
  throw Error(ErrorCode::kInvalidArgument,
              "normalization: expected clip, minmax, zscore or none, got " + io::escaped(name));
}

void check(const Int8Rule& rule) {
  if (!std::isfinite(rule.low) || !std::isfinite(rule.high) || rule.low > rule.high ||
      (rule.low == 0 && rule.high == 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                "range: expected LOW <= HIGH, finite and not both 0, got " +
                    std::to_string(rule.low) + ", " + std::to_string(rule.high));
  }
}

Int8Map::Int8Map(const Int8Rule& rule, io::StDtype dtype, const Statistics& statistics)
    : how_(rule.how),
      narrow_(dtype == io::StDtype::kF32 || dtype == io::StDtype::kF16 ||
              dtype == io::StDtype::kBF16),
      constant_((rule.how == Normalization::kMinMax && statistics.min == statistics.max) ||
                (rule.how == Normalization::kZScore && statistics.std == 0)),
      low_(rule.how == Normalization::kClip ? rule.low : statistics.min),
      high_(rule.how == Normalization::kClip ? rule.high : statistics.max),
      center_(statistics.mean),
      width_(statistics.std) {
  check(rule);
}

template <class Real>
std::int8_t Int8Map::map(Real value) const {
  if (constant_ || std::isnan(value)) return 0;
  const auto low = static_cast<Real>(low_);
  const auto high = static_cast<Real>(high_);
  switch (how_) {
    case Normalization::kClip: {
      const auto scale = static_cast<Real>(127 / std::max(std::abs(low_), std::abs(high_)));
      return truncated(std::clamp(value, low, high) * scale);
    }
    case Normalization::kMinMax:
      return truncated((value - low) / (high - low) * Real{255} - Real{128});
    case Normalization::kZScore: {
      const Real z = (value - static_cast<Real>(center_)) / static_cast<Real>(width_);
      return truncated(std::clamp(z, Real{-3}, Real{3}) / Real{3} * Real{127});
    }
    case Normalization::kNone:
      return truncated(value * Real{127});
  }
  return 0;
}

std::int8_t Int8Map::operator()(double value) const {
  return narrow_ ? map(static_cast<float>(value)) : map(value);
}

}  // namespace kda::view
