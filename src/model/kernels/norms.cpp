#include "model/kernels/norms.h"

#include "model/kernels/storage.h"
#include "model/kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/norms.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "model/kernels/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::model::HWY_NAMESPACE {

template <class T>
HWY_INLINE T inverse_rms(T sum_of_squares, std::int64_t width, double eps) {
  return T(1) / std::sqrt(sum_of_squares / static_cast<T>(width) + static_cast<T>(eps));
}

template <class S, class T>
void add_rms_forward_rows(const AddRmsNormForward& a, std::int64_t begin, std::int64_t end) {
  const T* gain = static_cast<const T*>(a.gain);
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t at = row * a.width;
    const T* h = static_cast<const T*>(a.residual) + at;
    S* y = static_cast<S*>(a.y) + at;
    RowSum<T> squares;
    if (a.delta != nullptr) {
      const S* delta = static_cast<const S*>(a.delta) + at;
      T* sum = static_cast<T*>(a.sum) + at;
      for_each_vector<T>(a.width, [&](auto d, std::int64_t i) HWY_ATTR {
        const auto v = hn::Add(load(d, h + i), load(d, delta + i));
        store(d, v, sum + i);
        squares.add_product(d, v, v);
      });
      h = sum;
    } else {
      for_each_vector<T>(a.width, [&](auto d, std::int64_t i) HWY_ATTR {
        const auto v = load(d, h + i);
        squares.add_product(d, v, v);
      });
    }
    const T rstd = inverse_rms(squares.total(), a.width, a.eps);
    for_each_vector<T>(a.width, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto unit = hn::Mul(load(d, h + i), hn::Set(d, rstd));
      store(d, hn::Mul(unit, load(d, gain + i)), y + i);
    });
  }
}

// With u = h * rstd and e = dy * gain: dh = dsum + rstd (e - u mean(e u)); dgain = sum dy u.
template <class S, class T>
void add_rms_backward_rows(const AddRmsNormBackward& b, T* dgain, std::int64_t begin,
                           std::int64_t end) {
  const T* gain = static_cast<const T*>(b.gain);
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t at = row * b.width;
    const T* h = static_cast<const T*>(b.sum) + at;
    const S* dy = static_cast<const S*>(b.dy) + at;
    const T* dsum = b.dsum == nullptr ? nullptr : static_cast<const T*>(b.dsum) + at;
    T* dh = static_cast<T*>(b.dresidual) + at;
    S* ddelta = b.ddelta == nullptr ? nullptr : static_cast<S*>(b.ddelta) + at;
    RowSum<T> squares;
    RowSum<T> dot;
    for_each_vector<T>(b.width, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto v = load(d, h + i);
      squares.add_product(d, v, v);
      dot.add_product(d, hn::Mul(load(d, dy + i), load(d, gain + i)), v);
    });
    const T rstd = inverse_rms(squares.total(), b.width, b.eps);
    const T back = dot.total() * rstd * rstd * rstd / static_cast<T>(b.width);
    for_each_vector<T>(b.width, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto v = load(d, h + i);
      const auto grad = load(d, dy + i);
      const auto scaled = hn::Mul(grad, hn::Set(d, rstd));
      store(d, hn::MulAdd(scaled, v, load(d, dgain + i)), dgain + i);
      auto out = hn::NegMulAdd(v, hn::Set(d, back), hn::Mul(scaled, load(d, gain + i)));
      if (dsum != nullptr) out = hn::Add(out, load(d, dsum + i));
      store(d, out, dh + i);
      if (ddelta != nullptr) store(d, out, ddelta + i);
    });
  }
}

template <class S, class T>
void gated_forward_tokens(const GatedNormForward& a, std::int64_t begin, std::int64_t end) {
  const T* gain = static_cast<const T*>(a.gain);
  for (std::int64_t t = begin; t < end; ++t) {
    for (std::int64_t head = 0; head < a.heads; ++head) {
      const std::int64_t at = (t * a.heads + head) * a.width;
      const S* x = static_cast<const S*>(a.x) + at;
      const S* gate = static_cast<const S*>(a.gate) + t * a.gate_stride + head * a.width;
      S* y = static_cast<S*>(a.y) + at;
      RowSum<T> squares;
      for_each_vector<T>(a.width, [&](auto d, std::int64_t i) HWY_ATTR {
        const auto v = load(d, x + i);
        squares.add_product(d, v, v);
      });
      const T rstd = inverse_rms(squares.total(), a.width, a.eps);
      for_each_vector<T>(a.width, [&](auto d, std::int64_t i) HWY_ATTR {
        const auto unit = hn::Mul(load(d, x + i), hn::Set(d, rstd));
        const auto open = sigmoid(d, load(d, gate + i));
        store(d, hn::Mul(hn::Mul(unit, load(d, gain + i)), open), y + i);
      });
    }
  }
}

// With u = x * rstd, s = sigmoid(gate), e = dy * gain * s: dx = rstd (e - u mean(e u));
// dgate = dy * gain * u * s (1 - s); dgain = sum dy u s.
template <class S, class T>
void gated_backward_tokens(const GatedNormBackward& b, T* dgain, std::int64_t begin,
                           std::int64_t end) {
  const GatedNormForward& a = b.forward;
  const T* gain = static_cast<const T*>(a.gain);
  constexpr std::int64_t kMaxWidth = 256;
  HWY_ALIGN T e_row[kMaxWidth];
  for (std::int64_t t = begin; t < end; ++t) {
    for (std::int64_t head = 0; head < a.heads; ++head) {
      const std::int64_t at = (t * a.heads + head) * a.width;
      const S* x = static_cast<const S*>(a.x) + at;
      const S* gate = static_cast<const S*>(a.gate) + t * a.gate_stride + head * a.width;
      const S* dy = static_cast<const S*>(b.dy) + at;
      S* dx = static_cast<S*>(b.dx) + at;
      S* dgate = static_cast<S*>(b.dgate) + at;
      RowSum<T> squares;
      for_each_vector<T>(a.width, [&](auto d, std::int64_t i) HWY_ATTR {
        const auto v = load(d, x + i);
        squares.add_product(d, v, v);
      });
      const T rstd = inverse_rms(squares.total(), a.width, a.eps);
      RowSum<T> dot;
      for_each_vector<T>(a.width, [&](auto d, std::int64_t i) HWY_ATTR {
        const auto unit = hn::Mul(load(d, x + i), hn::Set(d, rstd));
        const auto s = sigmoid(d, load(d, gate + i));
        const auto dys = hn::Mul(load(d, dy + i), s);
        store(d, hn::MulAdd(dys, unit, load(d, dgain + i)), dgain + i);
        const auto e = hn::Mul(dys, load(d, gain + i));
        store(d, e, e_row + i);
        const auto eu = hn::Mul(e, unit);
        dot.add(d, eu);
        store(d, hn::NegMulAdd(eu, s, eu), dgate + i);
      });
      const T mean = dot.total() / static_cast<T>(a.width);
      for_each_vector<T>(a.width, [&](auto d, std::int64_t i) HWY_ATTR {
        const auto scale = hn::Set(d, rstd);
        const auto unit = hn::Mul(load(d, x + i), scale);
        const auto inner = hn::NegMulAdd(unit, hn::Set(d, mean), load(d, e_row + i));
        store(d, hn::Mul(inner, scale), dx + i);
      });
    }
  }
}

void add_rms_forward_target(const AddRmsNormForward& a, std::int64_t begin, std::int64_t end) {
  with_storage(a.storage,
               [&]<class S, class T>(S, T) { add_rms_forward_rows<S, T>(a, begin, end); });
}
void add_rms_backward_target(const AddRmsNormBackward& b, void* dgain, std::int64_t begin,
                             std::int64_t end) {
  with_storage(b.storage, [&]<class S, class T>(S, T) {
    add_rms_backward_rows<S, T>(b, static_cast<T*>(dgain), begin, end);
  });
}
void gated_forward_target(const GatedNormForward& a, std::int64_t begin, std::int64_t end) {
  with_storage(a.storage,
               [&]<class S, class T>(S, T) { gated_forward_tokens<S, T>(a, begin, end); });
}
void gated_backward_target(const GatedNormBackward& b, void* dgain, std::int64_t begin,
                           std::int64_t end) {
  with_storage(b.forward.storage, [&]<class S, class T>(S, T) {
    gated_backward_tokens<S, T>(b, static_cast<T*>(dgain), begin, end);
  });
}

}  // namespace kda::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "model/kernels/blocks.h"

namespace kda::model {
namespace {

HWY_EXPORT(add_rms_forward_target);
HWY_EXPORT(add_rms_backward_target);
HWY_EXPORT(gated_forward_target);
HWY_EXPORT(gated_backward_target);

}  // namespace

void add_rms_norm_forward(const AddRmsNormForward& args) {
  for_each_block(args.rows, args.width, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_rms_forward_target)(args, begin, end);
  });
}

void add_rms_norm_backward(const AddRmsNormBackward& args) {
  with_storage(args.storage, [&]<class S, class T>(S, T) {
    sum_over_blocks<T>(args.rows, args.width, args.width, static_cast<T*>(args.dgain),
                       [&](std::int64_t begin, std::int64_t end, T* part) {
                         HWY_DYNAMIC_DISPATCH(add_rms_backward_target)(args, part, begin, end);
                       });
  });
}

void gated_norm_forward(const GatedNormForward& args) {
  const std::int64_t row = args.heads * args.width;
  for_each_block(args.tokens, row, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(gated_forward_target)(args, begin, end);
  });
}

void gated_norm_backward(const GatedNormBackward& args) {
  const GatedNormForward& a = args.forward;
  with_storage(a.storage, [&]<class S, class T>(S, T) {
    sum_over_blocks<T>(a.tokens, a.heads * a.width, a.width, static_cast<T*>(args.dgain),
                       [&](std::int64_t begin, std::int64_t end, T* part) {
                         HWY_DYNAMIC_DISPATCH(gated_backward_target)(args, part, begin, end);
                       });
  });
}

}  // namespace kda::model
#endif
