// Transposition between row-major scratch matrices, 4x4 blocks at a time.
#include "cpu/simd-inl.h"

#if defined(KDA_CPU_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_TRANSPOSE_INL_H_
#undef KDA_CPU_TRANSPOSE_INL_H_
#else
#define KDA_CPU_TRANSPOSE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace kda::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void transpose_4x4(const float* src, std::size_t ld_src, float* dst,
                              std::size_t ld_dst) {
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 0; j < 4; ++j)
      dst[j * ld_dst + i] = src[i * ld_src + j];
}
#else
HWY_INLINE void transpose_4x4(const float* src, std::size_t ld_src, float* dst,
                              std::size_t ld_dst) {
  const hn::FixedTag<float, 4> d;
  const hn::Repartition<double, decltype(d)> dd;
  const auto a = hn::LoadU(d, src);
  const auto b = hn::LoadU(d, src + ld_src);
  const auto c = hn::LoadU(d, src + 2 * ld_src);
  const auto e = hn::LoadU(d, src + 3 * ld_src);
  const auto ab_low = hn::BitCast(dd, hn::InterleaveLower(d, a, b));
  const auto ab_high = hn::BitCast(dd, hn::InterleaveUpper(d, a, b));
  const auto ce_low = hn::BitCast(dd, hn::InterleaveLower(d, c, e));
  const auto ce_high = hn::BitCast(dd, hn::InterleaveUpper(d, c, e));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dd, ab_low, ce_low)), d, dst);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dd, ab_low, ce_low)), d, dst + ld_dst);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dd, ab_high, ce_high)), d, dst + 2 * ld_dst);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dd, ab_high, ce_high)), d, dst + 3 * ld_dst);
}
#endif

// dst[j][i] = src[i][j] for any number of rows and columns.
inline HWY_NOINLINE void transpose(const float* src, std::size_t ld_src, std::size_t rows,
                                   std::size_t cols, float* dst, std::size_t ld_dst) {
  const std::size_t rows4 = rows / 4 * 4;
  const std::size_t cols4 = cols / 4 * 4;
  // Square and tall sources (states) are read once, in order.
  if (rows >= cols) {
    for (std::size_t i = 0; i < rows4; i += 4) {
      for (std::size_t j = 0; j < cols4; j += 4) {
        transpose_4x4(src + i * ld_src + j, ld_src, dst + j * ld_dst + i, ld_dst);
      }
    }
  } else {
    for (std::size_t j = 0; j < cols4; j += 4) {
      for (std::size_t i = 0; i < rows4; i += 4) {
        transpose_4x4(src + i * ld_src + j, ld_src, dst + j * ld_dst + i, ld_dst);
      }
    }
  }
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = i < rows4 ? cols4 : 0; j < cols; ++j) {
      dst[j * ld_dst + i] = src[i * ld_src + j];
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
