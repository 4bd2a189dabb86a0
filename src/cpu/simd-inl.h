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

// One or two vectors side by side. Named members, not arrays: GCC keeps arrays of vectors on the
// stack as soon as one loop over them is not unrolled early.
template <int kVecs>
struct Row;

template <>
struct Row<1> {
  Vec a;
  static HWY_INLINE Row zeros() { return {zero()}; }
  static HWY_INLINE Row from(const float* p) { return {load(p)}; }
  HWY_INLINE void write(float* p) const { store(a, p); }
  HWY_INLINE void add(Row y) { a = hn::Add(a, y.a); }
  HWY_INLINE void scale(Vec x) { a = hn::Mul(a, x); }
  HWY_INLINE void multiply(Row y) { a = hn::Mul(a, y.a); }
  HWY_INLINE void add_product(Vec x, Row y) { a = hn::MulAdd(x, y.a, a); }
  HWY_INLINE void add_product(Row x, Row y) { a = hn::MulAdd(x.a, y.a, a); }
  // this * (x + y)
  HWY_INLINE void fade(Vec x, Vec y) { a = hn::MulAdd(a, x, hn::Mul(a, y)); }
  HWY_INLINE void fade(Row x, Row y) { a = hn::MulAdd(a, x.a, hn::Mul(a, y.a)); }
  // x * (y - this)
  HWY_INLINE void scaled_difference(Vec x, Row y) { a = hn::Mul(x, hn::Sub(y.a, a)); }
};

template <>
struct Row<2> {
  Vec a, b;
  static HWY_INLINE Row zeros() { return {zero(), zero()}; }
  static HWY_INLINE Row from(const float* p) { return {load(p), load(p + kLanes)}; }
  HWY_INLINE void write(float* p) const {
    store(a, p);
    store(b, p + kLanes);
  }
  HWY_INLINE void add(Row y) {
    a = hn::Add(a, y.a);
    b = hn::Add(b, y.b);
  }
  HWY_INLINE void scale(Vec x) {
    a = hn::Mul(a, x);
    b = hn::Mul(b, x);
  }
  HWY_INLINE void multiply(Row y) {
    a = hn::Mul(a, y.a);
    b = hn::Mul(b, y.b);
  }
  HWY_INLINE void add_product(Vec x, Row y) {
    a = hn::MulAdd(x, y.a, a);
    b = hn::MulAdd(x, y.b, b);
  }
  HWY_INLINE void add_product(Row x, Row y) {
    a = hn::MulAdd(x.a, y.a, a);
    b = hn::MulAdd(x.b, y.b, b);
  }
  HWY_INLINE void fade(Vec x, Vec y) {
    a = hn::MulAdd(a, x, hn::Mul(a, y));
    b = hn::MulAdd(b, x, hn::Mul(b, y));
  }
  HWY_INLINE void fade(Row x, Row y) {
    a = hn::MulAdd(a, x.a, hn::Mul(a, y.a));
    b = hn::MulAdd(b, x.b, hn::Mul(b, y.b));
  }
  HWY_INLINE void scaled_difference(Vec x, Row y) {
    a = hn::Mul(x, hn::Sub(y.a, a));
    b = hn::Mul(x, hn::Sub(y.b, b));
  }
};

// Four vectors side by side, for instruction sets with 32 registers.
template <>
struct Row<4> {
  Row<2> left, right;
  static HWY_INLINE Row zeros() { return {Row<2>::zeros(), Row<2>::zeros()}; }
  static HWY_INLINE Row from(const float* p) {
    return {Row<2>::from(p), Row<2>::from(p + 2 * kLanes)};
  }
  HWY_INLINE void write(float* p) const {
    left.write(p);
    right.write(p + 2 * kLanes);
  }
  HWY_INLINE void add_product(Vec x, Row y) {
    left.add_product(x, y.left);
    right.add_product(x, y.right);
  }
  HWY_INLINE void add_product(Row x, Row y) {
    left.add_product(x.left, y.left);
    right.add_product(x.right, y.right);
  }
  HWY_INLINE void fade(Row x, Row y) {
    left.fade(x.left, y.left);
    right.fade(x.right, y.right);
  }
};

// Eight sums per tile are what two FMA units with a latency of four need; sixteen leave slack and
// halve the loads, where 32 registers hold them.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM
inline constexpr bool kManyRegisters = true;
#else
inline constexpr bool kManyRegisters = false;
#endif

// A register tile of 4 rows by kVecs vectors.
template <int kVecs>
struct Tile {
  Row<kVecs> r0, r1, r2, r3;

  static HWY_INLINE Tile zeros() {
    const auto z = Row<kVecs>::zeros();
    return {z, z, z, z};
  }
  static HWY_INLINE Tile from(const float* p, std::size_t ld) {
    return {Row<kVecs>::from(p), Row<kVecs>::from(p + ld), Row<kVecs>::from(p + 2 * ld),
            Row<kVecs>::from(p + 3 * ld)};
  }
  HWY_INLINE void write(float* p, std::size_t ld) const {
    r0.write(p);
    r1.write(p + ld);
    r2.write(p + 2 * ld);
    r3.write(p + 3 * ld);
  }

  // += A B with A(m, d) = a[m * a_row + d * a_col], B(d, n) = b[d * b_row + n].
  HWY_INLINE void add_product(const float* HWY_RESTRICT a, std::size_t a_row, std::size_t a_col,
                              const float* HWY_RESTRICT b, std::size_t b_row, std::size_t depth) {
    const float* a2 = a + 2 * a_row;
    for (std::size_t d = 0; d < depth; ++d) {
      const auto right = Row<kVecs>::from(b + d * b_row);
      r0.add_product(splat(a[d * a_col]), right);
      r1.add_product(splat(a[d * a_col + a_row]), right);
      r2.add_product(splat(a2[d * a_col]), right);
      r3.add_product(splat(a2[d * a_col + a_row]), right);
    }
  }
};

// Two tiles of one vector, one below the other: one alone has too few sums to hide their latency.
struct TallTile {
  Tile<1> upper, lower;

  static HWY_INLINE TallTile zeros() { return {Tile<1>::zeros(), Tile<1>::zeros()}; }
  HWY_INLINE void write(float* p, std::size_t ld) const {
    upper.write(p, ld);
    lower.write(p + 4 * ld, ld);
  }
  // += A B with A(m, d) = a[m * a_row + d], B(d, n) = b[d * b_row + n].
  HWY_INLINE void add_product(const float* HWY_RESTRICT a, std::size_t a_row,
                              const float* HWY_RESTRICT b, std::size_t b_row, std::size_t depth) {
    const float* a2 = a + 4 * a_row;
    for (std::size_t d = 0; d < depth; ++d) {
      const auto right = Row<1>::from(b + d * b_row);
      upper.r0.add_product(splat(a[d]), right);
      upper.r1.add_product(splat(a[d + a_row]), right);
      upper.r2.add_product(splat(a[d + 2 * a_row]), right);
      upper.r3.add_product(splat(a[d + 3 * a_row]), right);
      lower.r0.add_product(splat(a2[d]), right);
      lower.r1.add_product(splat(a2[d + a_row]), right);
      lower.r2.add_product(splat(a2[d + 2 * a_row]), right);
      lower.r3.add_product(splat(a2[d + 3 * a_row]), right);
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
