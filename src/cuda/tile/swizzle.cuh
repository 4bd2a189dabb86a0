// Row-major tiles of 16-bit elements in shared memory. Rows have room for 64, 128 or 256 elements,
// so that a piece stays in its row; the 16-byte pieces of a row are permuted so that neither
// ldmatrix (8 rows, one column) nor a store of 4 pieces from each of 8 rows meets a bank twice.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace kda::cuda {

__device__ inline std::uint32_t smem_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Elements from one row of a tile with kCols columns to the next.
template <int kCols>
inline constexpr int kPitch = kCols <= 64    ? 64
                              : kCols <= 128 ? 128
                                             : 256;

// Byte offset of 16-byte piece `piece` of row `row`.
template <int kCols>
__device__ inline std::uint32_t swizzled(int row, int piece) {
  const int permuted = piece ^ (((row & 1) << 2) | ((row >> 1) & 3));
  return static_cast<std::uint32_t>(row * (kPitch<kCols> * 2) + permuted * 16);
}

// Address that lane `lane` hands to ldmatrix for the 16x16 block at (row0, col0), both multiples of
// 16: matrices 0..3 = (rows 0-7, cols 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15).
// Tiles are aligned to 256 bytes (512 where the pitch is), so the column is an exclusive or and the
// row an offset: what depends on the lane is computed once.
template <int kCols>
__device__ inline std::uint32_t block_address(std::uint32_t tile, int row0, int col0, int lane) {
  return ((tile + swizzled<kCols>(lane % 16, lane / 16)) ^ static_cast<std::uint32_t>(col0 * 2)) +
         static_cast<std::uint32_t>(row0 * (kPitch<kCols> * 2));
}

__device__ inline std::uint32_t pack_bf16(float low, float high) {
  __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<std::uint32_t*>(&pair);
}
__device__ inline float low_of(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_of(std::uint32_t pair) { return __uint_as_float(pair & 0xffff0000U); }

// A pair times two factors, rounded.
__device__ inline std::uint32_t scale_pair(std::uint32_t pair, float x, float y) {
  return pack_bf16(low_of(pair) * x, high_of(pair) * y);
}

// Address of elements (row; col, col + 1), col even. Eight columns on: ^ 16; eight rows: + 16
// kPitch.
template <int kCols>
__device__ inline std::uint32_t pair_address(std::uint32_t tile, int row, int col) {
  return tile + swizzled<kCols>(row, col / 8) + static_cast<std::uint32_t>(col % 8) * 2;
}

}  // namespace kda::cuda
