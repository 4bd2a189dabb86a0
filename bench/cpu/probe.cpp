#include "bench/cpu/probe.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/cpu/probe.cpp"
// clang-format off: this order is Highway's
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace kda::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr long kRounds = 200000;

// Ten independent chains hide the latency of two pipes. Returns the FLOPs of one call; `seed` and
// the stored sum keep the work alive.
double fma_chains(float seed, float* sink) {
  const hn::ScalableTag<float> d;
  const auto x = hn::Set(d, 0.999F + seed * 1e-9F);
  const auto y = hn::Set(d, seed);
  auto a = y, b = y, c = y, e = y, f = y, g = y, h = y, i = y, j = y, k = y;
  for (long round = 0; round < kRounds; ++round) {
    a = hn::MulAdd(a, x, y);
    b = hn::MulAdd(b, x, y);
    c = hn::MulAdd(c, x, y);
    e = hn::MulAdd(e, x, y);
    f = hn::MulAdd(f, x, y);
    g = hn::MulAdd(g, x, y);
    h = hn::MulAdd(h, x, y);
    i = hn::MulAdd(i, x, y);
    j = hn::MulAdd(j, x, y);
    k = hn::MulAdd(k, x, y);
  }
  const auto left = hn::Add(hn::Add(hn::Add(a, b), hn::Add(c, e)), hn::Add(f, g));
  *sink = hn::GetLane(hn::Add(left, hn::Add(hn::Add(h, i), hn::Add(j, k))));
  return 2.0 * 10.0 * static_cast<double>(kRounds) * static_cast<double>(hn::Lanes(d));
}

}  // namespace HWY_NAMESPACE
}  // namespace kda::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <omp.h>

#include <algorithm>
#include <cstring>

namespace kda::bench {
namespace {
HWY_EXPORT(fma_chains);

// Calls work(begin, end) on the slices of [0, count).
template <typename Work>
void in_slices(std::size_t count, int threads, const Work& work) {
#pragma omp parallel num_threads(threads)
  {
    const auto parts = static_cast<std::size_t>(omp_get_num_threads());
    const auto part = static_cast<std::size_t>(omp_get_thread_num());
    work(count * part / parts, count * (part + 1) / parts);
  }
}
}  // namespace

double fma_gflops(int threads) {
  double best = 0.0;
  for (int repeat = 0; repeat < 30; ++repeat) {
    double flops = 0.0;
    const double start = omp_get_wtime();
#pragma omp parallel num_threads(threads) reduction(+ : flops)
    {
      float sink = 0.0F;
      flops += HWY_DYNAMIC_DISPATCH(fma_chains)(1.0F + static_cast<float>(repeat), &sink);
      if (sink == 12345.0F) flops += 1.0;
    }
    best = std::max(best, flops / (omp_get_wtime() - start) * 1e-9);
  }
  return best;
}

void copy_pass(const float* from, float* to, std::size_t floats, int threads) {
  in_slices(floats, threads, [&](std::size_t begin, std::size_t end) {
    std::memcpy(to + begin, from + begin, (end - begin) * sizeof(float));
  });
}

void scale_pass(float* x, std::size_t floats, int threads) {
  in_slices(floats, threads, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i)
      x[i] *= 0.9999F;
  });
}

}  // namespace kda::bench
#endif  // HWY_ONCE
