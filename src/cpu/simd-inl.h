// Vector types, padding and register-tiled products shared by the per-target code. Included once
// per instruction set.
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#if defined(KDA_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_SIMD_INL_H_
#undef KDA_CPU_SIMD_INL_H_
#else
#define KDA_CPU_SIMD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace kda::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using Vec = hn::Vec<F32>;
inline constexpr std::size_t kLanes = hn::MaxLanes(F32());

HWY_INLINE Vec load(const float* p) { return hn::LoadU(F32(), p); }
HWY_INLINE void store(Vec v, float* p) { hn::StoreU(v, F32(), p); }
HWY_INLINE Vec splat(float x) { return hn::Set(F32(), x); }
HWY_INLINE Vec zero() { return hn::Zero(F32()); }

HWY_INLINE std::size_t round_to_lanes(std::size_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

HWY_INLINE float lane_sum(Vec v) { return hn::GetLane(hn::SumOfLanes(F32(), v)); }

// Writes the sums of four vectors to out[0..3].
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void store_sums(Vec a, Vec b, Vec c, Vec d, float* out) {
  out[0] = hn::GetLane(a);
  out[1] = hn::GetLane(b);
  out[2] = hn::GetLane(c);
  out[3] = hn::GetLane(d);
}
#else
// Adds the 128-bit blocks of a vector.
template <class D>
HWY_INLINE auto fold_to_4(D /*tag*/, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return fold_to_4(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// Transposes and adds inside 128-bit blocks, then adds across them.
HWY_INLINE void store_sums(Vec a, Vec b, Vec c, Vec d, float* out) {
  const F32 df;
  const hn::Repartition<double, F32> dd;
  const Vec ab = hn::Add(hn::InterleaveLower(df, a, b), hn::InterleaveUpper(df, a, b));
  const Vec cd = hn::Add(hn::InterleaveLower(df, c, d), hn::InterleaveUpper(df, c, d));
  const auto ab2 = hn::BitCast(dd, ab);
  const auto cd2 = hn::BitCast(dd, cd);
  const Vec blocks = hn::Add(hn::BitCast(df, hn::InterleaveLower(dd, ab2, cd2)),
                             hn::BitCast(df, hn::InterleaveUpper(dd, ab2, cd2)));
  hn::StoreU(fold_to_4(df, blocks), hn::FixedTag<float, 4>(), out);
}
#endif

// A register tile of kRows x (kVecs * kLanes) results.
template <int kRows, int kVecs>
struct Tile {
  Vec at[kRows][kVecs];

  HWY_INLINE void clear() {
    for (int m = 0; m < kRows; ++m)
      for (int n = 0; n < kVecs; ++n)
        at[m][n] = zero();
  }
  HWY_INLINE void read(const float* p, std::size_t ld) {
    for (int m = 0; m < kRows; ++m)
      for (int n = 0; n < kVecs; ++n)
        at[m][n] =
            load(p + static_cast<std::size_t>(m) * ld + static_cast<std::size_t>(n) * kLanes);
  }
  HWY_INLINE void write(float* p, std::size_t ld) const {
    for (int m = 0; m < kRows; ++m)
      for (int n = 0; n < kVecs; ++n)
        store(at[m][n],
              p + static_cast<std::size_t>(m) * ld + static_cast<std::size_t>(n) * kLanes);
  }

  // += A B with A(m, d) = a[m * a_row + d * a_col], B(d, n) = b[d * b_row + n].
  HWY_INLINE void multiply_add(const float* HWY_RESTRICT a, std::size_t a_row, std::size_t a_col,
                               const float* HWY_RESTRICT b, std::size_t b_row, std::size_t depth) {
    for (std::size_t d = 0; d < depth; ++d) {
      Vec right[kVecs];
      for (int n = 0; n < kVecs; ++n)
        right[n] = load(b + static_cast<std::size_t>(n) * kLanes);
      for (int m = 0; m < kRows; ++m) {
        const Vec left = splat(a[static_cast<std::size_t>(m) * a_row]);
        for (int n = 0; n < kVecs; ++n)
          at[m][n] = hn::MulAdd(left, right[n], at[m][n]);
      }
      a += a_col;
      b += b_row;
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
