#include "model/kernels/swiglu.h"

#include "model/kernels/storage.h"
#include "model/kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/swiglu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "model/kernels/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::model::HWY_NAMESPACE {

template <class S, class T>
void forward_rows(const SwigluForward& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const S* gate = static_cast<const S*>(a.gate) + row * a.stride;
    const S* up = static_cast<const S*>(a.up) + row * a.stride;
    S* y = static_cast<S*>(a.y) + row * a.width;
    for_each_vector<T>(a.width, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto g = load(d, gate + i);
      store(d, hn::Mul(hn::Mul(g, sigmoid(d, g)), load(d, up + i)), y + i);
    });
  }
}

template <class S, class T>
void backward_rows(const SwigluBackward& b, std::int64_t begin, std::int64_t end) {
  const SwigluForward& a = b.forward;
  for (std::int64_t row = begin; row < end; ++row) {
    const S* gate = static_cast<const S*>(a.gate) + row * a.stride;
    const S* up = static_cast<const S*>(a.up) + row * a.stride;
    const S* dy = static_cast<const S*>(b.dy) + row * a.width;
    S* dgate = static_cast<S*>(b.dgate) + row * b.d_stride;
    S* dup = static_cast<S*>(b.dup) + row * b.d_stride;
    for_each_vector<T>(a.width, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto one = hn::Set(d, T(1));
      const auto g = load(d, gate + i);
      const auto s = sigmoid(d, g);
      const auto grad = load(d, dy + i);
      const auto slope = hn::Mul(s, hn::MulAdd(g, hn::Sub(one, s), one));
      store(d, hn::Mul(hn::Mul(grad, load(d, up + i)), slope), dgate + i);
      store(d, hn::Mul(grad, hn::Mul(g, s)), dup + i);
    });
  }
}

void swiglu_forward_target(const SwigluForward& a, std::int64_t begin, std::int64_t end) {
  with_storage(a.storage, [&]<class S, class T>(S, T) { forward_rows<S, T>(a, begin, end); });
}
void swiglu_backward_target(const SwigluBackward& b, std::int64_t begin, std::int64_t end) {
  with_storage(b.forward.storage,
               [&]<class S, class T>(S, T) { backward_rows<S, T>(b, begin, end); });
}

}  // namespace kda::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "model/kernels/blocks.h"

namespace kda::model {
namespace {

HWY_EXPORT(swiglu_forward_target);
HWY_EXPORT(swiglu_backward_target);

}  // namespace

void swiglu_forward(const SwigluForward& args) {
  for_each_block(args.rows, args.width, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(swiglu_forward_target)(args, begin, end);
  });
}

void swiglu_backward(const SwigluBackward& args) {
  const SwigluForward& a = args.forward;
  for_each_block(a.rows, a.width, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(swiglu_backward_target)(args, begin, end);
  });
}

}  // namespace kda::model
#endif
