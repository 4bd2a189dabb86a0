#include "io/mxfp4.h"

#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "kda/error.h"

namespace kda::io {
namespace {

constexpr std::array<float, 16> kElements = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,
                                             4.0F,  6.0F,  -0.0F, -0.5F, -1.0F, -1.5F,
                                             -2.0F, -3.0F, -4.0F, -6.0F};
constexpr unsigned kNanScale = 255;
constexpr int kScaleBias = 127;

float scale_of(std::byte stored) {
  const auto bits = static_cast<unsigned>(stored);
  if (bits == kNanScale) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0F, static_cast<int>(bits) - kScaleBias);
}

}  // namespace

void dequantise_mxfp4(std::span<const std::byte> packed, std::span<const std::byte> scales,
                      std::int64_t columns, std::span<float> out) {
  const auto width = static_cast<std::size_t>(columns);
  const auto block = static_cast<std::size_t>(kMxfp4Block);
  if (columns <= 0 || columns % kMxfp4Block != 0 || out.size() % width != 0 ||
      packed.size() != out.size() / 2 || scales.size() != out.size() / block) {
    throw Error(ErrorCode::kInvalidArgument,
                "mxfp4: expected rows of a multiple of 32 columns with columns/2 bytes and "
                "columns/32 scales, got " +
                    std::to_string(columns) + " columns, " + std::to_string(packed.size()) +
                    " bytes, " + std::to_string(scales.size()) + " scales for " +
                    std::to_string(out.size()) + " values");
  }
  for (std::size_t b = 0; b < scales.size(); ++b) {
    const float scale = scale_of(scales[b]);
    for (std::size_t i = 0; i < block; i += 2) {
      const auto pair = static_cast<unsigned>(packed[(b * block + i) / 2]);
      out[b * block + i] = kElements[pair & 15U] * scale;
      out[b * block + i + 1] = kElements[pair >> 4U] * scale;
    }
  }
}

}  // namespace kda::io
