#include "model/kernels/attn_res.h"

#include "model/kernels/storage.h"
#include "model/kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/attn_res.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "model/kernels/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::model::HWY_NAMESPACE {

// p [count] = softmax of the logits.
template <class T>
HWY_INLINE void depth_softmax(const T* logits, std::size_t count, T* p) {
  const T largest = *std::max_element(logits, logits + count);
  T total = 0;
  for (std::size_t i = 0; i < count; ++i) {
    p[i] = std::exp(logits[i] - largest);
    total += p[i];
  }
  for (std::size_t i = 0; i < count; ++i)
    p[i] /= total;
}

template <class S, class T>
void attn_res_forward_rows(const AttnResForward& a, std::int64_t begin, std::int64_t end) {
  const std::size_t count = a.sources.size();
  const T* gain = static_cast<const T*>(a.gain);
  const T* query = static_cast<const T*>(a.query);
  std::vector<T> p(count);
  for (std::int64_t row = begin; row < end; ++row) {
    T* logits = static_cast<T*>(a.logits) + row * static_cast<std::int64_t>(count);
    T* scales = static_cast<T*>(a.scales) + row * static_cast<std::int64_t>(count);
    T* h = static_cast<T*>(a.h) + row * a.width;
    for (std::size_t s = 0; s < count; ++s) {
      const S* v = static_cast<const S*>(a.sources[s]) + row * a.width;
      RowSum<T> squares;
      RowSum<T> dot;
      for_each_vector<T>(a.width, [&](auto d, std::int64_t i) HWY_ATTR {
        const auto x = load(d, v + i);
        squares.add_product(d, x, x);
        dot.add_product(d, x, hn::Mul(load(d, gain + i), load(d, query + i)));
      });
      scales[s] =
          T(1) / std::sqrt(squares.total() / static_cast<T>(a.width) + static_cast<T>(a.eps));
      logits[s] = dot.total() * scales[s];
    }
    depth_softmax(logits, count, p.data());
    for (std::size_t s = 0; s < count; ++s) {
      const S* v = static_cast<const S*>(a.sources[s]) + row * a.width;
      for_each_vector<T>(a.width, [&](auto d, std::int64_t i) HWY_ATTR {
        const auto share = hn::Mul(load(d, v + i), hn::Set(d, p[s]));
        store(d, s == 0 ? share : hn::Add(load(d, h + i), share), h + i);
      });
    }
  }
}

template <class S, class T>
void attn_res_backward_rows(const AttnResBackward& b, T* pulled, std::int64_t begin,
                            std::int64_t end) {
  const AttnResForward& a = b.forward;
  const std::size_t count = a.sources.size();
  const T* gain = static_cast<const T*>(a.gain);
  const T* query = static_cast<const T*>(a.query);
  std::vector<T> p(count);
  std::vector<T> dots(count);
  for (std::int64_t row = begin; row < end; ++row) {
    const T* logits = static_cast<const T*>(a.logits) + row * static_cast<std::int64_t>(count);
    const T* scales = static_cast<const T*>(a.scales) + row * static_cast<std::int64_t>(count);
    const T* dh = static_cast<const T*>(b.dh) + row * a.width;
    depth_softmax(logits, count, p.data());
    T mean = 0;
    for (std::size_t s = 0; s < count; ++s) {
      const S* v = static_cast<const S*>(a.sources[s]) + row * a.width;
      RowSum<T> dot;
      for_each_vector<T>(a.width, [&](auto d, std::int64_t i) HWY_ATTR {
        dot.add_product(d, load(d, v + i), load(d, dh + i));
      });
      dots[s] = dot.total();
      mean += p[s] * dots[s];
    }
    for (std::size_t s = 0; s < count; ++s) {
      const S* v = static_cast<const S*>(a.sources[s]) + row * a.width;
      S* dv = static_cast<S*>(b.dsources[s]) + row * a.width;
      const T pull = p[s] * (dots[s] - mean) * scales[s];
      const T back = pull * logits[s] * scales[s] / static_cast<T>(a.width);
      for_each_vector<T>(a.width, [&](auto d, std::int64_t i) HWY_ATTR {
        const auto x = load(d, v + i);
        const auto direction = hn::Mul(load(d, gain + i), load(d, query + i));
        auto grad = hn::Mul(load(d, dh + i), hn::Set(d, p[s]));
        grad = hn::MulAdd(hn::Set(d, pull), direction, grad);
        store(d, hn::NegMulAdd(hn::Set(d, back), x, grad), dv + i);
        store(d, hn::MulAdd(hn::Set(d, pull), x, load(d, pulled + i)), pulled + i);
      });
    }
  }
}

void attn_res_forward_target(const AttnResForward& a, std::int64_t begin, std::int64_t end) {
  with_storage(a.storage,
               [&]<class S, class T>(S, T) { attn_res_forward_rows<S, T>(a, begin, end); });
}
void attn_res_backward_target(const AttnResBackward& b, void* pulled, std::int64_t begin,
                              std::int64_t end) {
  with_storage(b.forward.storage, [&]<class S, class T>(S, T) {
    attn_res_backward_rows<S, T>(b, static_cast<T*>(pulled), begin, end);
  });
}

}  // namespace kda::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "model/kernels/blocks.h"

namespace kda::model {
namespace {

HWY_EXPORT(attn_res_forward_target);
HWY_EXPORT(attn_res_backward_target);

}  // namespace

void attn_res_forward(const AttnResForward& args) {
  const auto count = static_cast<std::int64_t>(args.sources.size());
  for_each_block(args.rows, args.width * count, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(attn_res_forward_target)(args, begin, end);
  });
}

void attn_res_backward(const AttnResBackward& args) {
  const AttnResForward& a = args.forward;
  with_storage(a.storage, [&]<class S, class T>(S, T) {
    sum_over_blocks<T>(a.rows, a.width * static_cast<std::int64_t>(a.sources.size()), a.width,
                       static_cast<T*>(args.pulled),
                       [&](std::int64_t begin, std::int64_t end, T* part) {
                         HWY_DYNAMIC_DISPATCH(attn_res_backward_target)(args, part, begin, end);
                       });
  });
}

}  // namespace kda::model
#endif
