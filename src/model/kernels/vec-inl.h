// Vector helpers of the host kernels, compiled once per instruction set (Highway).
#if defined(KDA_MODEL_KERNELS_VEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_MODEL_KERNELS_VEC_INL_H_
#undef KDA_MODEL_KERNELS_VEC_INL_H_
#else
#define KDA_MODEL_KERNELS_VEC_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <cstdint>
#include <type_traits>

#include "model/kernels/storage.h"

HWY_BEFORE_NAMESPACE();
namespace kda::model::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Loads in the compute type: f32 and f64 as they are, bf16 widened.
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* p) {
  return hn::LoadU(d, p);
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const Bf16* p) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

template <class D>
HWY_INLINE void store(D d, hn::Vec<D> v, hn::TFromD<D>* p) {
  hn::StoreU(v, d, p);
}

// Round to nearest even; NaN stays NaN.
template <class D>
HWY_INLINE void store([[maybe_unused]] D d, hn::Vec<D> v, Bf16* p) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  const hn::RebindToSigned<D> d32s;
  const auto bits = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff)));
  const auto quiet = hn::Or(bits, hn::Set(d32, 0x400000));
  const auto is_nan = hn::RebindMask(d32, hn::IsNaN(v));
  const auto high = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
  const auto narrow = hn::DemoteTo(d16, hn::BitCast(d32s, high));
  hn::StoreU(narrow, d16, reinterpret_cast<std::uint16_t*>(p));
}

// Calls f(d, i) for i = 0, lanes, ... and once per element of the tail with a one-lane tag.
template <class T, class F>
HWY_INLINE void for_each_vector(std::int64_t n, F&& f) {
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 1> d1;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    f(d, i);
  for (; i < n; ++i)
    f(d1, i);
}

// A sum over a row: whole vectors and the tail have an accumulator each.
template <class T>
struct RowSum {
  hn::Vec<hn::ScalableTag<T>> wide;
  T tail = 0;

  HWY_INLINE RowSum() : wide(hn::Zero(hn::ScalableTag<T>())) {}

  template <class D>
  HWY_INLINE void add(D, hn::Vec<D> v) {
    if constexpr (std::is_same_v<D, hn::ScalableTag<T>>) {
      wide = hn::Add(wide, v);
    } else {
      tail += hn::GetLane(v);
    }
  }
  template <class D>
  HWY_INLINE void add_product(D, hn::Vec<D> a, hn::Vec<D> b) {
    if constexpr (std::is_same_v<D, hn::ScalableTag<T>>) {
      wide = hn::MulAdd(a, b, wide);
    } else {
      tail += hn::GetLane(a) * hn::GetLane(b);
    }
  }
  HWY_INLINE T total() const {
    const hn::ScalableTag<T> d;
    return hn::GetLane(hn::SumOfLanes(d, wide)) + tail;
  }
};

// 1 / (1 + exp(-x)). The argument is cut where exp would overflow; NaN passes.
template <class D>
HWY_INLINE hn::Vec<D> sigmoid(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  const auto limit = hn::Set(d, sizeof(T) == 4 ? T(88) : T(700));
  const auto minus_x = hn::Neg(x);
  const auto cut = hn::IfThenElse(hn::Gt(minus_x, limit), limit, minus_x);
  const auto one = hn::Set(d, T(1));
  return hn::Div(one, hn::Add(one, hn::Exp(d, cut)));
}

}  // namespace kda::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
