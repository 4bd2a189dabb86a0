/// TensorLens's four ways to turn a tensor into 8-bit numbers.
///
///   clip    v = clip(x, low, high) * 127 / max(|low|, |high|)
///   minmax  v = (x - min) / (max - min) * 255 - 128; 0 for a constant tensor
///   zscore  v = clip((x - mean) / std, -3, 3) / 3 * 127; 0 when std is 0
///   none    v = x * 127
/// each rounded towards zero (TensorLens 0.0.3, normalize_to_int8). Where Python leaves the result
/// open this is fixed: NaN becomes 0, what lies outside [-128, 127] becomes the nearer end, and
/// statistics are those of the finite values.
#pragma once

#include <cstdint>
#include <string_view>

#include "view/array.h"
#include "view/statistics.h"

namespace kda::view {

enum class Normalization : std::uint8_t { kClip, kMinMax, kZScore, kNone };

/// "clip", "minmax", "zscore", "none".
std::string_view name_of(Normalization normalization);
/// Error(kInvalidArgument) listing the names.
Normalization normalization_from(std::string_view name);

struct Int8Rule {
  Normalization how = Normalization::kClip;
  double low = -1;  ///< of clip
  double high = 1;
};

/// Error(kInvalidArgument) unless low <= high, both finite and not both 0.
void check(const Int8Rule& rule);

/// The map of one tensor. f32 and shorter floats are computed in f32 as NumPy does, others in f64.
class Int8Map {
 public:
  Int8Map(const Int8Rule& rule, io::StDtype dtype, const Statistics& statistics);
  std::int8_t operator()(double value) const;

 private:
  template <class Real>
  std::int8_t map(Real value) const;

  Normalization how_;
  bool narrow_;
  bool constant_;
  double low_, high_;      ///< clip: bounds; minmax: smallest and largest
  double center_, width_;  ///< zscore
};

}  // namespace kda::view
