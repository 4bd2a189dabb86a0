// exp, softplus and sigmoid in f32. Polynomials were fitted by Lawson's iteration on the stated
// intervals; errors are measured over all exponents in tests/cpu.
#include "cpu/simd-inl.h"

#if defined(KDA_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_MATH_INL_H_
#undef KDA_CPU_MATH_INL_H_
#else
#define KDA_CPU_MATH_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace kda::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// (e^r - 1 - r) / r^2 for |r| <= ln(2)/2
HWY_INLINE Vec exp_tail(Vec r) {
  Vec p = splat(1.381459878757596e-3F);
  p = hn::MulAdd(p, r, splat(8.368716575205326e-3F));
  p = hn::MulAdd(p, r, splat(4.166838899254799e-2F));
  p = hn::MulAdd(p, r, splat(1.666652113199234e-1F));
  return hn::MulAdd(p, r, splat(4.999999403953552e-1F));
}

// e^x - 1 for |x| <= ln(2)/2
HWY_INLINE Vec expm1_small(Vec x) { return hn::MulAdd(hn::Mul(x, x), exp_tail(x), x); }

// e^x: inf above 88.73, 0 below -104, NaN stays NaN. |r| <= ln(2)/2, fit error 3e-9.
HWY_INLINE Vec exp(Vec x) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const Vec clamped = hn::Min(hn::Max(x, splat(-104.0F)), splat(89.0F));
  // Adding 1.5 * 2^23 leaves the nearest integer in the low mantissa bits.
  const Vec magic = splat(12582912.0F);
  const Vec shifted = hn::MulAdd(clamped, splat(1.44269504F), magic);
  const Vec n = hn::Sub(shifted, magic);
  Vec r = hn::NegMulAdd(n, splat(0.693145752F), clamped);  // 13-bit head: n * head is exact
  r = hn::NegMulAdd(n, splat(1.42860677e-6F), r);
  const Vec p = hn::MulAdd(hn::Mul(r, r), exp_tail(r), hn::Add(r, splat(1.0F)));
  // 2^n in two factors: n runs from -150 to 128.
  const auto whole = hn::Sub(hn::BitCast(di, shifted), hn::Set(di, 0x4b400000));
  const auto first = hn::ShiftRight<1>(whole);
  const auto second = hn::Sub(whole, first);
  const auto bias = hn::Set(di, 127);
  const Vec a = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(first, bias)));
  const Vec b = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(second, bias)));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Mul(hn::Mul(p, a), b));
}

// log(1 + e) for e in [0, 1]: 2 atanh(e / (2 + e)), fit error 1e-10.
HWY_INLINE Vec log1p_of_fraction(Vec e) {
  const Vec s = hn::Div(e, hn::Add(e, splat(2.0F)));
  const Vec z = hn::Mul(s, s);
  Vec p = splat(0.24291031062602997F);
  p = hn::MulAdd(p, z, splat(0.21430382131F));
  p = hn::MulAdd(p, z, splat(0.28616628051F));
  p = hn::MulAdd(p, z, splat(0.39998885989F));
  p = hn::MulAdd(p, z, splat(0.66666674614F));
  return hn::MulAdd(hn::Mul(z, s), p, hn::Add(s, s));
}

// log(1 + e^x)
HWY_INLINE Vec softplus(Vec x) {
  const Vec tail = log1p_of_fraction(exp(hn::Neg(hn::Abs(x))));
  return hn::Add(hn::Max(x, zero()), tail);  // a NaN comes back through the tail
}

// sigmoid(x), and sigmoid(x) * sigmoid(-x) without the cancellation of s (1 - s).
struct Sigmoid {
  Vec value;
  Vec slope;
};
HWY_INLINE Sigmoid sigmoid_with_slope(Vec x) {
  const Vec e = exp(hn::Neg(hn::Abs(x)));
  const Vec near_one = hn::Div(splat(1.0F), hn::Add(splat(1.0F), e));
  const Vec near_zero = hn::Mul(e, near_one);
  const auto negative = hn::Lt(x, zero());
  return {hn::IfThenElse(negative, near_zero, near_one), hn::Mul(near_zero, near_one)};
}
HWY_INLINE Vec sigmoid(Vec x) { return sigmoid_with_slope(x).value; }

}  // namespace HWY_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
