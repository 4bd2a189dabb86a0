#include "model/kernels/cross_entropy.h"

#include "model/kernels/storage.h"
#include "model/kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/cross_entropy.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstring>

#include "model/kernels/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::model::HWY_NAMESPACE {

// NaN wins, so that a poisoned row cannot look finite.
template <class S, class T>
HWY_INLINE T row_max(const S* row, std::int64_t n) {
  const hn::ScalableTag<T> wide;
  auto best = load(wide, row);  // n >= lanes, see the caller
  auto poison = hn::Zero(wide);
  T tail = hn::GetLane(best);
  T tail_poison = 0;
  for_each_vector<T>(n, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto v = load(d, row + i);
    if constexpr (std::is_same_v<decltype(d), hn::ScalableTag<T>>) {
      best = hn::Max(best, v);
      poison = hn::Add(poison, hn::Sub(v, v));  // 0, or NaN for NaN and infinities
    } else {
      const T x = hn::GetLane(v);
      if (x > tail) tail = x;
      tail_poison += x - x;
    }
  });
  const T top = hn::GetLane(hn::MaxOfLanes(wide, best));
  const T bad = hn::GetLane(hn::SumOfLanes(wide, poison)) + tail_poison;
  return (top > tail ? top : tail) + bad;
}

template <class S, class T>
T element(const S* p) {
  const hn::CappedTag<T, 1> d1;
  return hn::GetLane(load(d1, p));
}

template <class S, class T>
void rows_of(const CrossEntropyRows& a, std::int64_t begin, std::int64_t end) {
  const hn::ScalableTag<T> wide;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(wide));
  for (std::int64_t row = begin; row < end; ++row) {
    S* logits = static_cast<S*>(a.logits) + row * a.vocab;
    T* loss = static_cast<T*>(a.losses) + row;
    const std::int64_t target = a.targets[row];
    if (target < 0) {
      *loss = 0;
      if (a.gradient) std::memset(logits, 0, static_cast<std::size_t>(a.vocab) * sizeof(S));
      continue;
    }
    T top = 0;
    if (a.vocab >= lanes) {
      top = row_max<S, T>(logits, a.vocab);
    } else {
      top = element<S, T>(logits);
      for (std::int64_t i = 1; i < a.vocab; ++i) {
        const T x = element<S, T>(logits + i);
        top = x > top ? x : top;
      }
    }
    const T chosen = element<S, T>(logits + target);
    const bool in_place = a.gradient && std::is_same_v<S, T>;  // exp fits the storage type
    RowSum<T> sum;
    for_each_vector<T>(a.vocab, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto e = hn::Exp(d, hn::Sub(load(d, logits + i), hn::Set(d, top)));
      sum.add(d, e);
      if (in_place) store(d, e, logits + i);
    });
    const T total = sum.total();
    const T log_sum = top + std::log(total);
    *loss = log_sum - chosen;
    if (!a.gradient) continue;
    if (in_place) {
      for_each_vector<T>(a.vocab, [&](auto d, std::int64_t i) HWY_ATTR {
        store(d, hn::Mul(load(d, logits + i), hn::Set(d, T(1) / total)), logits + i);
      });
    } else {  // a second exp rather than a second rounding
      for_each_vector<T>(a.vocab, [&](auto d, std::int64_t i) HWY_ATTR {
        store(d, hn::Exp(d, hn::Sub(load(d, logits + i), hn::Set(d, log_sum))), logits + i);
      });
    }
    const hn::CappedTag<T, 1> d1;
    store(d1, hn::Set(d1, std::exp(chosen - log_sum) - T(1)), logits + target);
  }
}

void cross_entropy_target(const CrossEntropyRows& a, std::int64_t begin, std::int64_t end) {
  with_storage(a.storage, [&]<class S, class T>(S, T) { rows_of<S, T>(a, begin, end); });
}

}  // namespace kda::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

#include "kda/parallel.h"

namespace kda::model {
namespace {

HWY_EXPORT(cross_entropy_target);

}  // namespace

void cross_entropy_rows(const CrossEntropyRows& args) {
  constexpr std::int64_t kRows = 4;  // rows are long: small blocks balance the threads
  const std::int64_t blocks = (args.rows + kRows - 1) / kRows;
  const bool threads = worth_threads(args.rows * args.vocab);
#pragma omp parallel for schedule(static) num_threads(num_threads()) if (threads)
  for (std::int64_t b = 0; b < blocks; ++b) {
    HWY_DYNAMIC_DISPATCH(cross_entropy_target)
    (args, b * kRows, std::min(args.rows, (b + 1) * kRows));
  }
}

}  // namespace kda::model
#endif
