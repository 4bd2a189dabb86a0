#include "model/kernels/small_product.h"

#include "model/kernels/storage.h"
#include "model/kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/small_product.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "model/kernels/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::model::HWY_NAMESPACE {

// Two weight rows at a time against all rows of x: 2 R independent sums hide the latency of the
// multiply-add, and each weight is loaded once.
template <int R>
void outputs(const SmallProduct& a, std::int64_t begin, std::int64_t end) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t whole = a.in / lanes * lanes;
  for (std::int64_t o = begin; o < end; o += 2) {
    const float* w0 = a.weight + o * a.weight_stride;
    const float* w1 = o + 1 < end ? w0 + a.weight_stride : w0;
    hn::Vec<decltype(d)> sum0[R];
    hn::Vec<decltype(d)> sum1[R];
    for (int r = 0; r < R; ++r)
      sum0[r] = sum1[r] = hn::Zero(d);
    for (std::int64_t i = 0; i < whole; i += lanes) {
      const auto v0 = hn::LoadU(d, w0 + i);
      const auto v1 = hn::LoadU(d, w1 + i);
      for (int r = 0; r < R; ++r) {
        const auto x = hn::LoadU(d, a.x + r * a.x_stride + i);
        sum0[r] = hn::MulAdd(v0, x, sum0[r]);
        sum1[r] = hn::MulAdd(v1, x, sum1[r]);
      }
    }
    for (int r = 0; r < R; ++r) {
      float s0 = hn::GetLane(hn::SumOfLanes(d, sum0[r]));
      float s1 = hn::GetLane(hn::SumOfLanes(d, sum1[r]));
      for (std::int64_t i = whole; i < a.in; ++i) {
        s0 += w0[i] * a.x[r * a.x_stride + i];
        s1 += w1[i] * a.x[r * a.x_stride + i];
      }
      a.y[r * a.out + o] = s0;
      if (o + 1 < end) a.y[r * a.out + o + 1] = s1;
    }
  }
}

void small_product_target(const SmallProduct& a, std::int64_t begin, std::int64_t end) {
  switch (a.rows) {
    case 1:
      return outputs<1>(a, begin, end);
    case 2:
      return outputs<2>(a, begin, end);
    case 3:
      return outputs<3>(a, begin, end);
    case 4:
      return outputs<4>(a, begin, end);
    case 5:
      return outputs<5>(a, begin, end);
    case 6:
      return outputs<6>(a, begin, end);
    case 7:
      return outputs<7>(a, begin, end);
    default:
      return outputs<8>(a, begin, end);
  }
}

}  // namespace kda::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

#include "kda/parallel.h"

namespace kda::model {
namespace {

HWY_EXPORT(small_product_target);

}  // namespace

void small_product(const SmallProduct& args) {
  constexpr std::int64_t kOutputs = 64;
  const std::int64_t blocks = (args.out + kOutputs - 1) / kOutputs;
  const bool threads = worth_threads(args.in * args.out);
#pragma omp parallel for schedule(static) num_threads(num_threads()) if (threads)
  for (std::int64_t b = 0; b < blocks; ++b) {
    HWY_DYNAMIC_DISPATCH(small_product_target)
    (args, b * kOutputs, std::min(args.out, (b + 1) * kOutputs));
  }
}

}  // namespace kda::model
#endif
