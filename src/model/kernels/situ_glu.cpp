#include "model/kernels/situ_glu.h"

#include "model/kernels/storage.h"
#include "model/kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/situ_glu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "model/kernels/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::model::HWY_NAMESPACE {

// cap(x) = b tanh(x / b) and its slope 1 - tanh^2; without a cap x itself and 1.
template <class V>
struct Capped {
  V value;
  V slope;
};

template <class D, class V = hn::Vec<D>>
HWY_INLINE Capped<V> capped(D d, V x, hn::TFromD<D> cap) {
  using T = hn::TFromD<D>;
  const V one = hn::Set(d, T(1));
  if (cap <= T(0)) return {x, one};
  const V t = hn::Tanh(d, hn::Mul(x, hn::Set(d, T(1) / cap)));
  return {hn::Mul(t, hn::Set(d, cap)), hn::NegMulAdd(t, t, one)};
}

template <class S, class T>
void situ_forward_rows(const SwigluForward& a, const SituCaps& caps, std::int64_t begin,
                       std::int64_t end) {
  const auto gate_cap = static_cast<T>(caps.gate);
  const auto linear_cap = static_cast<T>(caps.linear);
  for (std::int64_t row = begin; row < end; ++row) {
    const S* gate = static_cast<const S*>(a.gate) + row * a.stride;
    const S* up = static_cast<const S*>(a.up) + row * a.stride;
    S* y = static_cast<S*>(a.y) + row * a.width;
    for_each_vector<T>(a.width, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto g = load(d, gate + i);
      const auto left = hn::Mul(capped(d, g, gate_cap).value, sigmoid(d, g));
      store(d, hn::Mul(left, capped(d, load(d, up + i), linear_cap).value), y + i);
    });
  }
}

template <class S, class T>
void situ_backward_rows(const SwigluBackward& b, const SituCaps& caps, std::int64_t begin,
                        std::int64_t end) {
  const SwigluForward& a = b.forward;
  const auto gate_cap = static_cast<T>(caps.gate);
  const auto linear_cap = static_cast<T>(caps.linear);
  for (std::int64_t row = begin; row < end; ++row) {
    const S* gate = static_cast<const S*>(a.gate) + row * a.stride;
    const S* up = static_cast<const S*>(a.up) + row * a.stride;
    const S* dy = static_cast<const S*>(b.dy) + row * a.width;
    S* dgate = static_cast<S*>(b.dgate) + row * b.d_stride;
    S* dup = static_cast<S*>(b.dup) + row * b.d_stride;
    for_each_vector<T>(a.width, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto g = load(d, gate + i);
      const auto s = sigmoid(d, g);
      const auto cap_g = capped(d, g, gate_cap);
      const auto cap_u = capped(d, load(d, up + i), linear_cap);
      const auto grad = load(d, dy + i);
      const auto left = hn::Mul(cap_g.value, s);
      // d/dg (cap(g) s) = cap'(g) s + cap(g) s (1 - s)
      const auto slope = hn::Add(hn::Mul(cap_g.slope, s), hn::NegMulAdd(left, s, left));
      store(d, hn::Mul(hn::Mul(grad, cap_u.value), slope), dgate + i);
      store(d, hn::Mul(hn::Mul(grad, left), cap_u.slope), dup + i);
    });
  }
}

void situ_forward_target(const SwigluForward& a, const SituCaps& caps, std::int64_t begin,
                         std::int64_t end) {
  with_storage(a.storage,
               [&]<class S, class T>(S, T) { situ_forward_rows<S, T>(a, caps, begin, end); });
}
void situ_backward_target(const SwigluBackward& b, const SituCaps& caps, std::int64_t begin,
                          std::int64_t end) {
  with_storage(b.forward.storage,
               [&]<class S, class T>(S, T) { situ_backward_rows<S, T>(b, caps, begin, end); });
}

}  // namespace kda::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "model/kernels/blocks.h"

namespace kda::model {
namespace {

HWY_EXPORT(situ_forward_target);
HWY_EXPORT(situ_backward_target);

}  // namespace

void situ_forward(const SwigluForward& args, const SituCaps& caps) {
  for_each_block(args.rows, args.width, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(situ_forward_target)(args, caps, begin, end);
  });
}

void situ_backward(const SwigluBackward& args, const SituCaps& caps) {
  const SwigluForward& a = args.forward;
  for_each_block(a.rows, a.width, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(situ_backward_target)(args, caps, begin, end);
  });
}

}  // namespace kda::model
#endif
