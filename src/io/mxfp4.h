/// The MXFP4 block format of weights: 4-bit floats in blocks of 32 that share a scale.
///
/// A row of n values is n/2 bytes, the even column in the low half of a byte, and n/32 scales. An
/// element is sign, two bits of exponent, one of mantissa (E2M1): 0, 0.5, 1, 1.5, 2, 3, 4, 6 and
/// their negatives, bit 3 being the sign. A scale byte s stands for 2^(s - 127) (E8M0); 255 is NaN.
/// Source: OCP Microscaling Formats specification 1.0, sections 5.3.3 and 5.4.1; the order of the
/// halves as in "compressed-tensors" checkpoints (format mxfp4-pack-quantized).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kda::io {

inline constexpr std::int64_t kMxfp4Block = 32;

/// packed [rows, columns/2], scales [rows, columns/32], out [rows, columns]; columns a multiple of
/// 32. Every value is exact in f32. Error(kInvalidArgument) when the sizes do not belong together.
void dequantise_mxfp4(std::span<const std::byte> packed, std::span<const std::byte> scales,
                      std::int64_t columns, std::span<float> out);

}  // namespace kda::io
